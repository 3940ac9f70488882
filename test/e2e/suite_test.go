// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// programs holds the binaries under test, built once for the whole suite.
var programs *testbin.Set

func TestMain(m *testing.M) {
	if asNetnsExec() {
		return
	}
	set, err := testbin.Build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = set
	code := m.Run()
	if err := set.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// verbTime bounds one call of a whole chain.
var verbTime = netlab.Patient(time.Minute)

// world is a node with its clients, for one test.
type world struct {
	*netlab.Lab
	t testing.TB
	// stderr collects what the plugins say there, for the log of a failed test.
	stderr *lockedBuffer
}

func newWorld(t *testing.T, o ...netlab.Options) *world {
	t.Helper()
	w := &world{Lab: netlab.NewT(t, o...), t: t, stderr: &lockedBuffer{}}
	t.Cleanup(func() {
		if t.Failed() && w.stderr.String() != "" {
			t.Logf("the plugins' stderr:\n%s", w.stderr)
		}
	})
	return w
}

// twoUplinks is a node with two devices and a client on each.
func twoUplinks() netlab.Options {
	return netlab.Options{Uplinks: []netlab.Uplink{netlab.DefaultUplink(0), netlab.DefaultUplink(1)}}
}

// runtime loads a network into the node's container runtime.
func (w *world) runtime(n network) *netlab.Runtime {
	w.t.Helper()
	return w.runtimeFrom(n, programs.Dir)
}

// runtimeFrom is runtime with the plugins of a directory.
func (w *world) runtimeFrom(n network, dir string) *netlab.Runtime {
	w.t.Helper()
	rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: n.conflist(w.t), Stderr: w.stderr})
	if err != nil {
		w.t.Fatal(err)
	}
	return rt
}

// pod is a namespace with one attachment.
type pod struct {
	*netlab.Pod
	t      testing.TB
	rt     *netlab.Runtime
	att    netlab.Attachment
	result *types100.Result
	// IP4 and IP6 are its first addresses, invalid where it has none.
	IP4, IP6 netip.Addr
}

// newPod makes a namespace and describes its attachment without calling ADD.
func (w *world) newPod(rt *netlab.Runtime, name string, ports ...mapping) *pod {
	w.t.Helper()
	p := &pod{Pod: w.Node.PodT(w.t, name), t: w.t, rt: rt}
	p.att = netlab.Attachment{ContainerID: name, NetNS: p.Path}
	if len(ports) > 0 {
		p.att.Capabilities = map[string]any{"portMappings": ports}
	}
	return p
}

// add makes a pod of a network.
func (w *world) add(rt *netlab.Runtime, name string, ports ...mapping) *pod {
	w.t.Helper()
	p := w.newPod(rt, name, ports...)
	p.mustAdd()
	return p
}

// tryAdd runs ADD and remembers what it said.
func (p *pod) tryAdd() error {
	ctx, cancel := context.WithTimeout(context.Background(), verbTime)
	defer cancel()
	res, err := p.rt.Add(ctx, p.att)
	if err != nil {
		return err
	}
	if p.result, err = types100.NewResultFromResult(res); err != nil {
		return err
	}
	for _, ip := range p.result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		if addr = addr.Unmap(); addr.Is4() && !p.IP4.IsValid() {
			p.IP4 = addr
		} else if addr.Is6() && !p.IP6.IsValid() {
			p.IP6 = addr
		}
	}
	return nil
}

func (p *pod) mustAdd() {
	p.t.Helper()
	if err := p.tryAdd(); err != nil {
		p.t.Fatalf("ADD %s: %v", p.Name, err)
	}
}

func (p *pod) tryDel() error {
	ctx, cancel := context.WithTimeout(context.Background(), verbTime)
	defer cancel()
	return p.rt.Del(ctx, p.att)
}

func (p *pod) mustDel() {
	p.t.Helper()
	if err := p.tryDel(); err != nil {
		p.t.Fatalf("DEL %s: %v", p.Name, err)
	}
}

func (p *pod) check() error {
	ctx, cancel := context.WithTimeout(context.Background(), verbTime)
	defer cancel()
	return p.rt.Check(ctx, p.att)
}

// mac returns what the result says of the pod's device.
func (p *pod) mac() string {
	p.t.Helper()
	for _, i := range p.result.Interfaces {
		if i.Sandbox != "" {
			return i.Mac
		}
	}
	p.t.Fatal("the result names no interface of the pod")
	return ""
}

// hostEnd returns the name of the pod's device on the node.
func (p *pod) hostEnd() string {
	p.t.Helper()
	for _, i := range p.result.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
			return i.Name
		}
	}
	p.t.Fatal("the result names no veth on the node")
	return ""
}

// sh runs a command line in a namespace and returns its output.
func sh(t testing.TB, ns interface{ Do(func() error) error }, line string) string {
	t.Helper()
	var out string
	err := ns.Do(func() (err error) {
		args := strings.Fields(line)
		out, err = netlab.Run(args[0], args[1:]...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// snapshot reads the node's state, without the link-local addresses that the
// kernel makes in its own time (duplicate address detection, RFC 4862).
func (w *world) snapshot() netlab.Snapshot {
	w.t.Helper()
	s, err := w.Node.Snapshot()
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(s, func(line string) bool {
		return strings.Contains(line, "fe80:") && (strings.HasPrefix(line, "addr ") || strings.HasPrefix(line, "route "))
	})
}

// steady is snapshot after "sluice resync", since not every verb looks again which
// devices are uplinks now: a bridge without pods is one, as any other device
// with an address.
func (w *world) steady() netlab.Snapshot {
	w.t.Helper()
	sh(w.t, w.Node, programs.Path("sluice")+" resync")
	return w.snapshot()
}

// settled makes and removes one pod of a network, so that what stays on the
// node by design (the bridge, the loaded programs, the allocator's cursor) is
// there, and returns the snapshot to compare with.
func (w *world) settled(rt *netlab.Runtime, ports ...mapping) netlab.Snapshot {
	w.t.Helper()
	p := w.add(rt, "settle", ports...)
	p.mustDel()
	if err := p.Delete(); err != nil {
		w.t.Fatal(err)
	}
	return w.steady()
}

// assertNothingLeft compares the node with a steady snapshot of before.
func (w *world) assertNothingLeft(before netlab.Snapshot) {
	w.t.Helper()
	if d := netlab.DiffSoon(before, w.steady); d != "" {
		w.t.Errorf("the node differs (- gone, + left behind):\n%s", d)
	}
}

// eventually tries f until it succeeds, for what the kernel does in its own
// time. The last error ends the test.
func eventually(t testing.TB, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(netlab.Patient(limit))
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// lockedBuffer is a bytes.Buffer that many plugins may write to.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
