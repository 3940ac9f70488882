// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed" // dbnet.json
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// conflist is the CNI specification's example "dbnet" with a gateway, masquerade
// and an IPv6 range added.
//
//go:embed dbnet.json
var conflist []byte

const (
	hostPort      = 8080
	containerPort = 80
	clientPort    = 9000
	webMAC        = "00:11:22:33:44:66" // the specification's example
)

// demo is what the steps share.
type demo struct {
	*printer
	bin string

	dir     string // installed plugins
	lab     *netlab.Lab
	rt      *netlab.Runtime
	before  netlab.Snapshot
	web     *pod
	app     *pod
	stops   []func() error
	stderrs bytes.Buffer // of the plugins
}

// pod is a namespace with its attachment to dbnet.
type pod struct {
	*netlab.Pod
	att    netlab.Attachment
	result *types100.Result
}

type step struct {
	title string
	run   func(context.Context) error
}

func (d *demo) steps() []step {
	return []step{
		{"Make a node and a client in namespaces of their own", d.makeWorld},
		{"Install the plugins: one binary under every name", d.install},
		{"Load the CNI specification's example network, dbnet", d.load},
		{"ADD pod \"web\" with hostPort 8080 and a MAC address", d.addWeb},
		{"ADD pod \"app\"", d.addApp},
		{"The client fetches a page of \"web\" through the hostPort", d.fetchWeb},
		{"\"app\" fetches a page of the client, which sees the node's address", d.fetchClient},
		{"CHECK both pods", d.check},
		{"sluice status", d.status},
		{"DEL both pods, then unload", d.del},
		{"Compare the node with what it was", d.compare},
	}
}

// close ends servers and namespaces. A failed demo needs it as well.
func (d *demo) close() error {
	var errs []error
	for _, stop := range d.stops {
		errs = append(errs, stop())
	}
	for _, p := range []*pod{d.web, d.app} {
		if p != nil {
			errs = append(errs, p.Delete())
		}
	}
	if d.lab != nil {
		errs = append(errs, d.lab.Close())
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

func (d *demo) makeWorld(context.Context) (err error) {
	if d.lab, err = netlab.New(netlab.Options{}); err != nil {
		return err
	}
	u := d.lab.Client().Uplink
	d.say("node   %s %s", netlab.IP4(u.Node), netlab.IP6(u.Node))
	d.say("client %s %s", netlab.IP4(u.Client), netlab.IP6(u.Client))
	d.before, err = d.snapshot()
	return err
}

func (d *demo) install(context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return err
	}
	out, err := netlab.Run(d.tool(), "install", d.dir)
	if err != nil {
		return err
	}
	d.block(out)
	return nil
}

// tool returns the path of the operator's tool.
func (d *demo) tool() string { return filepath.Join(d.bin, "sluice") }

func (d *demo) load(ctx context.Context) (err error) {
	d.block(string(conflist))
	d.rt, err = d.lab.Node.CNI(netlab.CNIOptions{Path: []string{d.dir}, Conflist: conflist, Stderr: &d.stderrs})
	if err != nil {
		return err
	}
	if err := d.rt.Status(ctx); err != nil {
		return fmt.Errorf("STATUS: %w", err)
	}
	d.good("STATUS: an ADD would work")
	return nil
}

func (d *demo) addWeb(ctx context.Context) (err error) {
	mappings := []map[string]any{{"hostPort": hostPort, "containerPort": containerPort, "protocol": "tcp"}}
	d.web, err = d.add(ctx, "web", map[string]any{"portMappings": mappings, "mac": webMAC})
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(d.web.result, "", "  ")
	if err != nil {
		return err
	}
	d.block(string(text))
	return nil
}

func (d *demo) addApp(ctx context.Context) (err error) {
	d.app, err = d.add(ctx, "app", nil)
	if err == nil {
		d.say("addresses %s %s", d.app.addr(netip.Addr.Is4), d.app.addr(netip.Addr.Is6))
	}
	return err
}

// add makes a pod as a container runtime does.
func (d *demo) add(ctx context.Context, name string, capabilities map[string]any) (*pod, error) {
	ns, err := d.lab.Node.NewPod(name)
	if err != nil {
		return nil, err
	}
	p := &pod{Pod: ns, att: netlab.Attachment{ContainerID: name, NetNS: ns.Path, Capabilities: capabilities}}
	res, err := d.rt.Add(ctx, p.att)
	if err == nil {
		p.result, err = types100.NewResultFromResult(res)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, d.stderrs.String()), ns.Delete())
	}
	return p, nil
}

// addr returns the pod's first address of a family.
func (p *pod) addr(is func(netip.Addr) bool) netip.Addr {
	for _, ip := range p.result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok && is(a.Unmap()) {
			return a.Unmap()
		}
	}
	return netip.Addr{}
}
