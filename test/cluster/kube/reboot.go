// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// Reboot has a node lose power and start again with its disk, and returns when it is ready. Its services start as a boot starts them.
func (c *Cluster) Reboot(ctx context.Context, i int) error {
	node := c.Node[i]
	if err := node.Reboot(ctx); err != nil {
		return err
	}
	// The kernel takes a while to remove a namespace, and so the end of the cable that was in it.
	if _, err := c.Control.Shell(ctx, "ip link del "+portOf(node)+" 2>/dev/null || true"); err != nil {
		return err
	}
	if err := c.plug(ctx, node, firstNode+i); err != nil {
		return err
	}
	if err := errors.Join(c.StartContainerd(ctx, i), c.StartKubelet(i), c.StartProxy(i)); err != nil {
		return err
	}
	return c.backAgain(ctx, i)
}

// backAgain gives a node its routes, and waits until the cluster knows of its boot.
func (c *Cluster) backAgain(ctx context.Context, i int) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	if c.Agent != "" {
		if err := c.StartAgent(i, Sluice); err != nil {
			return err
		}
	} else {
		all, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, other := range all.Items {
			for n := range c.Node {
				if nodeName(n) != other.Name {
					continue
				}
				if err := c.route(ctx, n, other.Spec.PodCIDRs, []*machine.Machine{c.Node[i]}); err != nil {
					return err
				}
			}
		}
	}
	boot, err := c.Node[i].Run(ctx, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	name := c.Node[i].Name
	if err := Poll(ctx, time.Minute, name+" tells of its boot", func(ctx context.Context) error {
		got, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && got.Status.NodeInfo.BootID != strings.TrimSpace(boot) {
			err = fmt.Errorf("it says %q, and has %q", got.Status.NodeInfo.BootID, boot)
		}
		return err
	}); err != nil {
		return err
	}
	return c.WaitReady(ctx, client, i)
}
