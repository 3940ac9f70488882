// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// column is a way to carry packets: a back end of ours, or the reference's.
type column struct {
	name string
	conf string // of /etc/sluice/config.json
	dir  string // of the plugins
	// keys that the reference needs to take these tables, for the plugin that makes the interface and for portmap.
	main, portmap attributes
	need          func(testing.TB)
}

const (
	reference    = "reference"     // with iptables, its default
	referenceNFT = "reference-nft" // portmap and masquerade only: its firewall knows no nftables
)

// ourColumns are those that are compared with the reference.
func ourColumns() []column {
	cs := []column{
		{name: "ebpf-tcx", conf: `{"backend":"auto","attach":"tcx"}`, need: require.TCX},
		{name: "ebpf-clsact", conf: `{"backend":"auto","attach":"clsact"}`},
	}
	for _, b := range netfilterBackends() {
		cs = append(cs, column{name: b.name, conf: b.conf})
	}
	for i := range cs {
		cs[i].dir = programs.Dir
	}
	return cs
}

// referenceColumns are the oracle. None where the plugins can neither be found
// nor built, as on a test kernel: the outcomes on file stand for them there.
func referenceColumns(t *testing.T) []column {
	t.Helper()
	dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall", "bandwidth")
	if err != nil {
		if _, noGo := exec.LookPath("go"); noGo == nil {
			t.Fatal(err)
		}
		t.Logf("no reference plugins here, the outcomes on file are compared with: %v", err)
		return nil
	}
	nftables := func(key string) attributes { return attributes{key: "nftables"} }
	return []column{
		{name: reference, dir: dir, conf: `{}`},
		{name: referenceNFT, dir: dir, conf: `{}`, main: nftables("ipMasqBackend"), portmap: nftables("backend")},
	}
}

// behaviour is something that users can see, observed in one family.
type behaviour struct {
	// name says what is done; what is seen is the outcome.
	name string
	// only is "4" for what exists in IPv4 only, "-" for what has no family.
	only string
	see  func(s *stage, fam family) string
}

func (b behaviour) families() []family {
	switch b.only {
	case "4":
		return families()[:1]
	case "-":
		return []family{{name: "-"}}
	}
	return families()
}

// scene is a node with pods, and what is seen there.
type scene struct {
	group   string // the heading in the document
	options netlab.Options
	build   func(s *stage)
	// at once, and then one after the other, for what changes the scene.
	atOnce, then []behaviour
}

// stage is a scene in one column.
type stage struct {
	*world
	column column
	pods   map[string]*pod
	tries  atomic.Int32 // pods that belong to one behaviour each
}

// runtime loads a network with the keys of the column.
func (s *stage) runtime(n network) *netlab.Runtime {
	s.t.Helper()
	n.extra, n.portmap = merged(s.column.main, n.extra), merged(s.column.portmap, n.portmap)
	rt, err := s.Node.CNI(netlab.CNIOptions{Path: []string{s.column.dir}, Conflist: n.conflist(s.t), Stderr: s.stderr})
	if err != nil {
		s.t.Fatal(err)
	}
	return rt
}

// merged is base with what is said over it.
func merged(base, over attributes) attributes {
	out := attributes{}
	for _, m := range []attributes{base, over} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// pod attaches one that answers at port 80.
func (s *stage) pod(rt *netlab.Runtime, name string, ports ...mapping) *pod {
	s.t.Helper()
	p := s.add(rt, name, ports...)
	serve(s.t, p, name, ":80")
	s.pods[name] = p
	return p
}

// results are outcomes by behaviour and column.
type results struct {
	mu    sync.Mutex
	cells map[string]map[string]string
}

func rowName(group string, b behaviour, fam family) string {
	if fam.name == "-" {
		return group + ": " + b.name
	}
	return fmt.Sprintf("%s: %s, %s", group, b.name, fam.name)
}

func (r *results) put(row, column, outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cells[row] == nil {
		r.cells[row] = map[string]string{}
	}
	r.cells[row][column] = outcome
}

// play runs one scene in one column.
func (sc scene) play(t *testing.T, c column, r *results) {
	s := &stage{world: newWorld(t, sc.options), column: c, pods: map[string]*pod{}}
	s.configure(c.conf)
	// Every refusal is said: the kernel's limit of ICMP errors to one peer is no part of any behaviour.
	sh(t, s.Node, "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0")
	sc.build(s)
	s.settleAddresses()
	var wg sync.WaitGroup
	for _, b := range sc.atOnce {
		for _, fam := range b.families() {
			wg.Go(func() { r.put(rowName(sc.group, b, fam), c.name, b.see(s, fam)) })
		}
	}
	wg.Wait()
	for _, b := range sc.then {
		for _, fam := range b.families() {
			r.put(rowName(sc.group, b, fam), c.name, b.see(s, fam))
		}
	}
}

// settleAddresses waits until no address of the node is tentative: the reference
// lets the kernel look for duplicates (RFC 4862) of a gateway.
func (s *stage) settleAddresses() {
	s.t.Helper()
	eventually(s.t, 20*time.Second, func() error {
		if out := sh(s.t, s.Node, "ip -6 -o addr show scope global tentative"); out != "" {
			return errors.New(out)
		}
		return nil
	})
}

// who names an address of the scene.
func (s *stage) who(a netip.Addr) string {
	for _, fam := range families() {
		for i, c := range s.Clients {
			number := strings.Repeat("2", min(i, 1))
			switch a {
			case fam.node(c):
				return "node" + number
			case fam.client(c):
				return "client" + number
			}
		}
		for name, p := range s.pods {
			if a == fam.pod(p) {
				return name
			}
		}
	}
	for _, gw := range []string{"10.1.0.1", "fd00:10:1::1"} {
		if a.String() == gw {
			return "gateway"
		}
	}
	return a.String()
}

// whole is what "make parity" sets.
var whole = flag.Bool("whole", false, "TestPrivilegedParity: every scene, which takes minutes, not only the first of each feature")

// scenesToSee are all, or with neither -whole nor -update the first of each feature.
func scenesToSee() []scene {
	if *whole || *update {
		return scenes()
	}
	return []scene{hostPorts(), masquerading(), policies("same-bridge")}
}

// TestPrivilegedParity sees behaviours in every column: all columns agree
// with the reference but for what is listed as deliberate, and everything is as
// docs/parity.md says.
func TestPrivilegedParity(t *testing.T) {
	r := &results{cells: map[string]map[string]string{}}
	columns := append(referenceColumns(t), ourColumns()...)
	t.Run("columns", func(t *testing.T) {
		for _, c := range columns {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if c.need != nil {
					c.need(t)
				}
				for _, sc := range scenesToSee() {
					t.Run(strings.ReplaceAll(sc.group, " ", "_"), func(t *testing.T) { sc.play(t, c, r) })
				}
			})
		}
	})
	judge(t, r)
}
