// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Pod is a pod netns with one attachment.
type Pod struct {
	*netlab.Pod
	T          testing.TB
	Runtime    *netlab.Runtime
	Attachment netlab.Attachment
	Result     *types100.Result
	// IP4 and IP6 are its first addresses, invalid where it has none.
	IP4, IP6 netip.Addr
}

// NewPod makes a pod netns and describes its attachment, without calling ADD. name is
// also the container ID; ports become the portMappings capability.
func (w *World) NewPod(rt *netlab.Runtime, name string, ports ...PortMapping) *Pod {
	w.T.Helper()
	p := &Pod{Pod: w.Node.PodT(w.T, name), T: w.T, Runtime: rt}
	p.Attachment = netlab.Attachment{ContainerID: name, NetNS: p.Path}
	if len(ports) > 0 {
		p.Attachment.Capabilities = map[string]any{"portMappings": ports}
	}
	return p
}

// AddPod makes a pod netns and attaches it. A failure of ADD ends the test.
func (w *World) AddPod(rt *netlab.Runtime, name string, ports ...PortMapping) *Pod {
	w.T.Helper()
	p := w.NewPod(rt, name, ports...)
	p.MustAdd()
	return p
}

// Join attaches a pod to a second network, as Multus and podman do: the same container,
// another interface. What is sent from the addresses of that one leaves by it, if the
// network has a bridge.
func (w *World) Join(p *Pod, rt *netlab.Runtime, ifname string, ports ...PortMapping) *Pod {
	w.T.Helper()
	second := &Pod{Pod: p.Pod, T: w.T, Runtime: rt, Attachment: p.Attachment}
	second.Attachment.IfName, second.Attachment.Capabilities = ifname, nil
	if len(ports) > 0 {
		second.Attachment.Capabilities = map[string]any{"portMappings": ports}
	}
	second.MustAdd()
	for _, ip := range second.Result.IPs {
		if !strings.HasPrefix(ifname, "net") || second.Result.Interfaces[0].Sandbox != "" {
			continue
		}
		family := "-4"
		if ip.Address.IP.To4() == nil {
			family = "-6"
		}
		table := "10" + strings.TrimPrefix(ifname, "net")
		MustRun(w.T, p, "ip "+family+" rule add from "+ip.Address.IP.String()+" table "+table)
		MustRun(w.T, p, "ip "+family+" route add default via "+ip.Gateway.String()+" dev "+ifname+" table "+table)
	}
	return second
}

// ServeOwn is Serve at port 80 of the attachment's own addresses.
func ServeOwn(t testing.TB, p *Pod, name string) {
	t.Helper()
	for suffix, addr := range map[string]netip.Addr{"4": p.IP4, "6": p.IP6} {
		ServeFamily(t, p, suffix, name, At(addr, 80))
	}
}

// TryAdd runs ADD, and fills in Result, IP4 and IP6.
func (p *Pod) TryAdd() error {
	ctx, cancel := context.WithTimeout(context.Background(), VerbTimeout)
	defer cancel()
	res, err := p.Runtime.Add(ctx, p.Attachment)
	if err != nil {
		return err
	}
	if p.Result, err = types100.NewResultFromResult(res); err != nil {
		return err
	}
	for _, ip := range p.Result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		if addr = addr.Unmap(); addr.Is4() && !p.IP4.IsValid() {
			p.IP4 = addr
		} else if addr.Is6() && !p.IP6.IsValid() {
			p.IP6 = addr
		}
	}
	return nil
}

// MustAdd is TryAdd that has to succeed.
func (p *Pod) MustAdd() {
	p.T.Helper()
	if err := p.TryAdd(); err != nil {
		p.T.Fatalf("ADD %s: %v", p.Name, err)
	}
}

// TryDel runs DEL.
func (p *Pod) TryDel() error {
	ctx, cancel := context.WithTimeout(context.Background(), VerbTimeout)
	defer cancel()
	return p.Runtime.Del(ctx, p.Attachment)
}

// MustDel is TryDel that has to succeed.
func (p *Pod) MustDel() {
	p.T.Helper()
	if err := p.TryDel(); err != nil {
		p.T.Fatalf("DEL %s: %v", p.Name, err)
	}
}

// Check runs CHECK.
func (p *Pod) Check() error {
	ctx, cancel := context.WithTimeout(context.Background(), VerbTimeout)
	defer cancel()
	return p.Runtime.Check(ctx, p.Attachment)
}

// MustCheck ends the test if CHECK finds something.
func MustCheck(t *testing.T, p *Pod) {
	t.Helper()
	if err := p.Check(); err != nil {
		t.Fatalf("CHECK: %v", err)
	}
}

// AssertChecked fails the test if CHECK finds something.
func AssertChecked(t testing.TB, p *Pod) {
	t.Helper()
	if err := p.Check(); err != nil {
		t.Errorf("CHECK %s: %v", p.Name, err)
	}
}

// MAC returns the hardware address that the result gives the pod's device.
func (p *Pod) MAC() string {
	p.T.Helper()
	for _, i := range p.Result.Interfaces {
		if i.Sandbox != "" {
			return i.Mac
		}
	}
	p.T.Fatal("the result names no interface of the pod")
	return ""
}

// HostVeth returns the name of the host veth in the result.
func (p *Pod) HostVeth() string {
	p.T.Helper()
	for _, i := range p.Result.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
			return i.Name
		}
	}
	p.T.Fatal("the result names no veth on the node")
	return ""
}

// ForgetAny removes what the runtime may still have cached of the attachment.
func (p *Pod) ForgetAny() error {
	err := p.Runtime.ForgetCache(p.Attachment)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
