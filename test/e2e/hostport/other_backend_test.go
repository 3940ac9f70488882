// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// The last ADD gets a hostPort, also when the node's backend has changed since the one before. The port goes back when
// the newcomer leaves first.
func TestPrivilegedLastAddWinsAcrossBackends(t *testing.T) {
	t.Parallel()
	ebpf := e2etest.Backend{Name: "ebpf", Conf: `{"backend":"ebpf"}`}
	for _, tables := range e2etest.NetfilterBackends() {
		for _, order := range [][2]e2etest.Backend{{ebpf, tables}, {tables, ebpf}} {
			t.Run(order[0].Name+" then "+order[1].Name, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				rt := w.Runtime(e2etest.Net0())
				add := func(b e2etest.Backend, name string) *e2etest.Pod {
					t.Helper()
					w.SetBackend(b)
					p := w.AddPod(rt, name, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
					e2etest.Serve(t, p, name, ":80")
					e2etest.AssertHostPort(t, w, name)
					e2etest.AssertChecked(t, p)
					return p
				}
				w.SetBackend(ebpf)
				w.NodeAfterPod(rt, e2etest.TCP(8080, 80)) // loads the programs
				old, young := add(order[0], "old"), add(order[1], "young")
				last := add(order[0], "last")
				if got := published(t, w); strings.Contains(got, "claim") != (order[0] != ebpf) {
					t.Errorf("the last pod is one of %s, and the hostPorts are %s", order[0].Name, got)
				}
				young.MustDel() // waits itself
				e2etest.AssertHostPort(t, w, "last")
				last.MustDel()
				e2etest.AssertHostPort(t, w, "old")
				e2etest.AssertChecked(t, old)
				again := add(order[1], "again")
				old.MustDel()
				e2etest.AssertHostPort(t, w, "again")
				again.MustDel()
				for _, p := range []*e2etest.Pod{old, young, last, again} {
					if err := p.Delete(); err != nil {
						t.Fatal(err)
					}
				}
				if left := published(t, w); left != "" {
					t.Errorf("hostPorts that nothing removed: %s", left)
				}
			})
		}
	}
}

// published is the list of hostPorts as the operator sees it, empty for none.
func published(t *testing.T, w *e2etest.World) string {
	t.Helper()
	var ports []map[string]any
	w.SluiceJSON(t, &ports, "hostports")
	if len(ports) == 0 {
		return ""
	}
	return fmt.Sprint(ports)
}
