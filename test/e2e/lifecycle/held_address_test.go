// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// otherNetworks are networks whose plugins serve a pod's address, each by another way, with the subnets of Net0.
func otherNetworks() map[string]e2etest.Network {
	subnets := []string{"10.1.0.0/16", "fd00:10:1::/64"}
	limit := e2etest.Merge(e2etest.BandwidthLimits("ingress", 8_000_000, 800_000), e2etest.BandwidthLimits("egress", 8_000_000, 800_000))
	other := func(n e2etest.Network) e2etest.Network {
		n.Name, n.Bridge, n.Subnets = "other", "cni1", subnets
		return n
	}
	return map[string]e2etest.Network{
		"bridge, ipMasq": other(e2etest.Network{Plugins: []string{}}),
		"ptp, ipMasq":    other(e2etest.Network{Main: "ptp", Plugins: []string{}}),
		"portmap":        other(e2etest.Network{NoMasq: true, Plugins: []string{"portmap"}}),
		"firewall":       other(e2etest.Network{NoMasq: true, Plugins: []string{"firewall"}}),
		"bandwidth":      other(e2etest.Network{NoMasq: true, Plugins: []string{"bandwidth"}, Bandwidth: limit}),
	}
}

// ask makes a pod of another network that asks for an address of p in one family, and for a free one in the other.
func ask(w *e2etest.World, rt *netlab.Runtime, p *e2etest.Pod, name string, v4 bool) *e2etest.Pod {
	q := w.NewPod(rt, name, e2etest.TCP(8081, 80))
	q.Attachment.Capabilities["ips"] = []string{p.IP4.String(), "fd00:10:1::7777"}
	if !v4 {
		q.Attachment.Capabilities["ips"] = []string{"10.1.77.77", p.IP6.String()}
	}
	return q
}

// wantHeld wants an ADD's error to be a conflict that names the holder and its address.
func wantHeld(t *testing.T, err error, words ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != 103 {
		t.Errorf("got %v, want code 103", err)
		return
	}
	for _, word := range words {
		if !strings.Contains(e.Msg, word) {
			t.Errorf("%q does not name %s", e.Msg, word)
		}
	}
}

// A pod that asks for an address of a living pod of another network does not get it. The holder loses nothing, and gets nothing from the
// DEL of the other one.
func TestPrivilegedAddressOfAnotherNetwork(t *testing.T) {
	t.Parallel()
	cases := 0
	for holder, net := range map[string]e2etest.Network{"bridge": e2etest.Net0(), "ptp": e2etest.PTPNetwork()} {
		for name, other := range otherNetworks() {
			if cases++; !netlab.Turn(cases) {
				continue
			}
			t.Run(holder+", then "+name, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				w.Configure(`{"backend":"ebpf"}`)
				rt, rt2 := w.Runtime(net), w.Runtime(other)
				w.Warmup(rt)
				w.Warmup(rt2, e2etest.TCP(8081, 80))
				p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
				e2etest.Serve(t, p, "web", ":80")
				before := w.SyncedSnapshot()
				for _, v4 := range []bool{true, false} {
					addr := p.IP4
					if !v4 {
						addr = p.IP6
					}
					q := ask(w, rt2, p, fmt.Sprint("thief", v4), v4)
					wantHeld(t, q.TryAdd(), "address "+addr.String(), "container web", "eth0", `"net0"`)
					q.MustDel()
					if err := q.Delete(); err != nil {
						t.Fatal(err)
					}
				}
				w.AssertNothingLeft(before)
				e2etest.AssertHostPort(t, w, "web")
				if err := p.Check(); err != nil {
					t.Errorf("CHECK: %v", err)
				}
				// Once the holder is gone, the address is free.
				p.MustDel()
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				q := ask(w, rt2, p, "next", true)
				q.MustAdd()
				if err := q.Check(); err != nil {
					t.Errorf("CHECK of the next: %v", err)
				}
			})
		}
	}
}

// Of several pods that ask for one address at the same time, one gets it and is reached.
func TestPrivilegedAddressAskedInParallel(t *testing.T) {
	t.Parallel()
	for name, main := range map[string]e2etest.Network{"ptp, ipMasq": {Main: "ptp"}, "ptp": {Main: "ptp", NoMasq: true}, "bridge, ipMasq": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.Configure(`{"backend":"ebpf"}`)
			const pods = 4
			all, errs := make([]*e2etest.Pod, pods), make([]error, pods)
			for i := range all {
				n := main
				n.Name, n.Bridge = fmt.Sprintf("net%d", i), fmt.Sprintf("cni%d", i)
				all[i] = w.NewPod(w.Runtime(n), fmt.Sprintf("p%d", i), e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
				all[i].Attachment.Capabilities["ips"] = []string{"10.1.0.7", "fd00:10:1::7"}
			}
			var wg sync.WaitGroup
			for i, p := range all {
				wg.Go(func() { errs[i] = p.TryAdd() })
			}
			wg.Wait()
			var winner *e2etest.Pod
			for i, p := range all {
				if errs[i] != nil {
					wantHeld(t, errs[i], "address ", "container p")
					p.MustDel()
				} else if winner != nil {
					t.Errorf("%s and %s have the address", winner.Name, p.Name)
				} else {
					winner = p
				}
			}
			if winner == nil {
				t.Fatal("no pod got the address")
			}
			if err := winner.Check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			e2etest.Serve(t, winner, winner.Name, ":80")
			e2etest.AssertHostPort(t, w, winner.Name)
		})
	}
}
