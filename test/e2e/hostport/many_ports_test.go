// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// portRange is as a runtime passes a published range: one mapping for each port.
func portRange(first, n int) (out []e2etest.PortMapping) {
	for port := first; port < first+n; port++ {
		out = append(out, e2etest.TCP(port, 80))
	}
	return out
}

// A pod of two families publishes a range of ports, on a node without a configuration. No verb takes longer than a pod's start may:
// the time of each is far from it, so that a way of quadratic cost fails and a loaded machine does not.
func TestPrivilegedManyPorts(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"1001 ports": 1001, "4096 ports": 4096} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			rt := w.Runtime(e2etest.Net0())
			before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
			const first = 20000
			ports := portRange(first, n)
			within := func(what string, f func()) {
				t.Helper()
				start := time.Now()
				f()
				took := time.Since(start)
				t.Logf("%s: %s", what, took.Round(time.Millisecond))
				if took > netlab.Patient(10*time.Second) {
					t.Errorf("%s took %s", what, took)
				}
			}
			answers := func(who string) {
				t.Helper()
				for _, fam := range e2etest.Families() {
					for _, port := range []int{first, first + n/2, first + n - 1} {
						if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), uint16(port))); got.Server != who {
							t.Errorf("%s, port %d: answered by %s, want %s", fam.Name, port, got.Server, who)
						}
					}
				}
			}
			old, young := w.NewPod(rt, "old", ports...), w.NewPod(rt, "young", ports...)
			within("ADD", old.MustAdd)
			e2etest.Serve(t, old, "old", ":80")
			answers("old")
			within("CHECK", func() { e2etest.MustCheck(t, old) })
			within("a second ADD", func() { old.MustDel(); old.MustAdd() })
			within("ADD of a pod that takes them over", young.MustAdd)
			e2etest.Serve(t, young, "young", ":80")
			answers("young")
			within("DEL, and they go back", young.MustDel)
			answers("old")
			within("ADD again", young.MustAdd)
			within("GC of the second pod", func() {
				if err := rt.GC(t.Context(), []types.GCAttachment{{ContainerID: old.Attachment.ContainerID, IfName: "eth0"}}); err != nil {
					t.Errorf("GC: %v", err)
				}
			})
			answers("old")
			var shown []struct{ Port int }
			w.SluiceJSON(t, &shown, "hostports")
			if len(shown) != 2*n {
				t.Errorf("sluice hostports shows %d", len(shown))
			}
			within("DEL", old.MustDel)
			young.MustDel()
			w.AssertNothingLeft(before)
		})
	}
}

// Tables of netfilter have no limit, but a CHECK of them must not take a minute.
func TestPrivilegedManyPortsOfTables(t *testing.T) {
	t.Parallel()
	for _, b := range e2etest.NetfilterBackends() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			p := w.AddPod(w.Runtime(e2etest.Network{Plugins: []string{"portmap"}}), "web", portRange(20000, 1001)...)
			start := time.Now()
			e2etest.MustCheck(t, p)
			if took := time.Since(start); took > netlab.Patient(10*time.Second) {
				t.Errorf("CHECK took %s", took)
			}
			p.MustDel()
		})
	}
}

// A map that is too small for all of them is an error that names the key of its size, and leaves nothing.
func TestPrivilegedNoRoomForPorts(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"backend": "ebpf", "mapSizes": {"hostPorts": 1024}}`)
	rt := w.Runtime(e2etest.Net0())
	before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
	p := w.NewPod(rt, "web", portRange(20000, 1001)...)
	err := p.TryAdd()
	for _, word := range []string{"sl_hostports", "full", "hostPorts", "mapSizes"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("ADD: %v, want an error with %q", err, word)
		}
	}
	p.MustDel()
	w.AssertNothingLeft(before)
}

// One port more than the limit is refused before any effect, by a message that says which key allows it. With that key it is published.
func TestPrivilegedTooManyPorts(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
	p := w.NewPod(rt, "web", portRange(20000, 4097)...)
	err := p.TryAdd()
	for _, word := range []string{"runtimeConfig.portMappings", "4097", "hostPortsPerAttachment", "4096"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("ADD: %v, want an error with %q", err, word)
		}
	}
	p.MustDel()
	w.AssertNothingLeft(before)
	w.Configure(`{"hostPortsPerAttachment": 5000}`)
	p.MustAdd()
	p.MustDel()
}
