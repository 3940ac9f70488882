// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

func (d *demo) check(ctx context.Context) error {
	for _, p := range []*pod{d.web, d.app} {
		if err := d.rt.Check(ctx, p.att); err != nil {
			return fmt.Errorf("CHECK %s: %w", p.Name, err)
		}
		d.good("CHECK %s", p.Name)
	}
	max, err := d.web.ReadSysctl("net/core/somaxconn")
	if err != nil {
		return err
	}
	if max != "500" {
		return fmt.Errorf("net.core.somaxconn of the pod is %s, want 500", max)
	}
	d.good("the pod has net.core.somaxconn = %s and MAC %s", max, webMAC)
	return nil
}

// inNode runs a program inside the node and returns what it prints.
func (d *demo) inNode(name string, args ...string) (out string, err error) {
	err = d.lab.Node.Do(func() error {
		out, err = netlab.Run(name, args...)
		return err
	})
	return out, err
}

func (d *demo) status(context.Context) error {
	for _, args := range [][]string{{"status"}, {"hostports"}, {"conntrack", "list"}, {"endpoints"}} {
		d.say("node$ sluice %s", strings.Join(args, " "))
		out, err := d.inNode(d.tool(), args...)
		if err != nil {
			return err
		}
		d.block(out)
	}
	return nil
}

// del removes the pods by DEL, then what the node keeps for the next one: the
// loaded programs and the bridge.
func (d *demo) del(ctx context.Context) error {
	for _, p := range []*pod{d.web, d.app} {
		if err := d.rt.Del(ctx, p.att); err != nil {
			return fmt.Errorf("DEL %s: %w", p.Name, err)
		}
		d.good("DEL %s", p.Name)
	}
	if err := d.rt.GC(ctx, []types.GCAttachment{}); err != nil {
		return fmt.Errorf("GC: %w", err)
	}
	d.good("GC with no valid attachment: nothing to do")
	left, err := d.snapshot()
	if err != nil {
		return err
	}
	if err := noAttachment(left); err != nil {
		return err
	}
	d.good("no device, record, published port or reserved address of a pod is left")
	d.say("what stays until the next ADD: the bridge cni0, the loaded programs, the allocator's cursor")
	out, err := d.inNode(d.tool(), "unload")
	if err != nil {
		return err
	}
	d.say("node$ sluice unload")
	d.block(out)
	if _, err := d.inNode("ip", "link", "del", "cni0"); err != nil {
		return err
	}
	d.say("node$ ip link del cni0")
	return nil
}

// noAttachment looks for what belongs to a pod in the node's state. Hidden files
// are locks, and host-local's cursor and lock belong to the network.
func noAttachment(s netlab.Snapshot) error {
	bad := s.Grep("link veth")
	for _, dir := range []string{"/run/sluice/attachments/", "/run/cni/", "/var/lib/cni/networks/dbnet/", "/var/lib/cni/results/"} {
		for _, line := range s.Grep("file " + dir) {
			name := line[strings.LastIndex(line, "/")+1:]
			if name != "" && name[0] != '.' && name != "lock" && !strings.HasPrefix(name, "last_reserved_ip.") {
				bad = append(bad, line)
			}
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("left behind by DEL:\n%s", bad)
	}
	return nil
}

// keeps reports whether a fact is what plugins keep on purpose: locks, empty
// directories and the allocator's cursor; forwarding, which others may have come
// to rely on.
func keeps(fact string) bool {
	for _, dir := range []string{"/var/lib/cni/", "/run/sluice/", "/run/cni/"} {
		if strings.HasPrefix(fact, "file "+dir) {
			return true
		}
	}
	// A node that forwards also answers to its subnets' router anycast addresses (RFC 4291 2.6.1).
	return strings.HasPrefix(fact, "sysctl ") && strings.Contains(fact, "forward") || strings.HasPrefix(fact, "route anycast ")
}

func (d *demo) compare(context.Context) error {
	after, err := d.snapshot()
	if err != nil {
		return err
	}
	if err := noAttachment(after); err != nil {
		return err
	}
	var bad []string
	for line := range strings.SplitSeq(netlab.Diff(d.before, after), "\n") {
		if line != "" && !keeps(line[2:]) {
			bad = append(bad, line)
		}
	}
	if len(bad) > 0 {
		return errors.New("the node differs (- gone, + left behind):\n" + strings.Join(bad, "\n"))
	}
	d.good("no device, address, route, program, map, pin or netfilter rule is left;")
	d.say("   forwarding stays on, and locks and the allocator's cursor stay in /run and /var/lib/cni")
	return nil
}

// snapshot reads the node's state, less the link-local addresses that the
// kernel makes in its own time.
func (d *demo) snapshot() (netlab.Snapshot, error) {
	s, err := d.lab.Node.Snapshot()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(s, func(line string) bool { return strings.Contains(line, "fe80:") }), nil
}
