// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Where firewalld runs, auto takes the tables. A backend that is named stays, and so does eBPF for what only eBPF can do.
func TestBackendWithFirewalld(t *testing.T) {
	t.Parallel()
	const sources = `"allowedSources":["192.0.2.0/24"]`
	for _, tt := range []struct {
		conf, node string
		firewalld  bool
		want       string
	}{
		{"", "", false, backend.EBPF},
		{"", "", true, netfilter.NameIPTables},
		{`"backend":"auto"`, "", true, netfilter.NameIPTables},
		{`"backend":"auto"`, backend.EBPF, true, netfilter.NameIPTables},
		{`"backend":"ebpf"`, "", true, backend.EBPF},
		{"", backend.EBPF, true, backend.EBPF},
		{`"backend":"ebpf"`, netfilter.NameIPTables, true, backend.EBPF},
		{sources, "", true, backend.EBPF},
	} {
		t.Run(strings.Join([]string{tt.conf, tt.node}, " "), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			p := &plugin{Deps{Records: n.Records, Netfilter: func(*cniskel.Args) (Netfilter, error) {
				return fakeNetfilter{byDefault: tt.node, firewalld: tt.firewalld}, nil
			}}}
			a := n.Args("a", withPrev(tt.conf, web))
			s, prev, err := parseChained(a)
			if err != nil {
				t.Fatal(err)
			}
			parts, err := p.assignBackends(t.Context(), a, s.request(a, prev))
			if err != nil || len(parts) != 1 {
				t.Fatalf("%d parts, %v", len(parts), err)
			}
			if got := parts[0].backend.Name(); got != tt.want {
				t.Errorf("firewalld runs: %v: %s, want %s", tt.firewalld, got, tt.want)
			}
		})
	}
}
