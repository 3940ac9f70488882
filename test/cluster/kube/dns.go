// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/ociimage"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

//go:embed manifests/coredns.yaml
var dnsManifest string

// StartDNS starts the cluster's DNS server, and returns when all of it is ready. Building CoreDNS is the caller's business.
func (c *Cluster) StartDNS(ctx context.Context) error {
	bin, err := kubebin.Dir()
	if err != nil {
		return err
	}
	image := ociimage.Image{Name: DNSImage, Files: map[string]string{"/coredns": filepath.Join(bin, kubebin.CoreDNS)}, Entrypoint: []string{"/coredns"}}
	archives, err := writeImages(c.images(), "dns", image)
	if err != nil {
		return err
	}
	for i := range c.Node {
		if err := c.importImages(ctx, i, archives); err != nil {
			return err
		}
	}
	if _, err := c.Kubectl(ctx, dnsManifest, "apply", "-f", "-"); err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	return Poll(ctx, time.Minute, "DNS is ready", func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas < *d.Spec.Replicas {
			err = fmt.Errorf("%d of %d servers are", d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
		return err
	})
}

// Kubectl runs kubectl with a standard input, as the user who may do everything, and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return c.Control.RunWith(ctx, stdin, append([]string{sharedBin + "/kubectl", "--kubeconfig", machine.Shared + "/pki/admin.kubeconfig"}, args...)...)
}
