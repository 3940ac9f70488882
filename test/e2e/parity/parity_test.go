// SPDX-License-Identifier: Apache-2.0

package parity

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

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// column is a way to carry packets: a backend of ours, or upstream's.
type column struct {
	name string
	conf string // of /etc/sluice/config.json
	dir  string // of the plugins
	// keys that upstream needs to take these tables, for the plugin that makes the interface and for portmap.
	main, portmap e2etest.Attributes
	require       func(testing.TB)
}

const (
	reference    = "reference"     // with iptables, its default
	referenceNFT = "reference-nft" // portmap and masquerade only: its firewall knows no nftables
)

// ourColumns are those that are compared with upstream.
func ourColumns() []column {
	cs := []column{
		{name: "ebpf-tcx", conf: `{"backend":"auto","attach":"tcx"}`, require: require.TCX},
		{name: "ebpf-clsact", conf: `{"backend":"auto","attach":"clsact"}`},
	}
	for _, b := range e2etest.NetfilterBackends() {
		cs = append(cs, column{name: b.Name, conf: b.Conf})
	}
	for i := range cs {
		cs[i].dir = e2etest.Programs.Dir
	}
	return cs
}

// referenceColumns are the oracle. None where the plugins can neither be found
// nor built, as on a test kernel: the outcomes on file stand for them there.
func referenceColumns(t *testing.T) []column {
	t.Helper()
	dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall", "bandwidth",
		"static", "macvlan", "tap", "host-device", "tuning", "sbr")
	if err != nil {
		if _, noGo := exec.LookPath("go"); noGo == nil {
			t.Fatal(err)
		}
		t.Logf("no reference plugins here, the outcomes on file are compared with: %v", err)
		return nil
	}
	nftables := func(key string) e2etest.Attributes { return e2etest.Attributes{key: "nftables"} }
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
	only    string
	observe func(s *stage, fam e2etest.Family) string
}

func (b behaviour) families() []e2etest.Family {
	switch b.only {
	case "4":
		return e2etest.Families()[:1]
	case "-":
		return []e2etest.Family{{Name: "-"}}
	}
	return e2etest.Families()
}

// parityCase is a node with pods, and what is seen there.
type parityCase struct {
	group   string // the heading in the document
	options netlab.Options
	build   func(s *stage)
	// at once, and then one after the other, for what changes the scene.
	atOnce, then []behaviour
}

// stage is a scene in one column.
type stage struct {
	*e2etest.World
	column column
	pods   map[string]*e2etest.Pod
	tries  atomic.Int32 // pods that belong to one behaviour each
}

// runtime loads a network with the keys of the column.
func (s *stage) runtime(n e2etest.Network) *netlab.Runtime {
	s.T.Helper()
	n.Extra, n.Portmap = e2etest.Merge(s.column.main, n.Extra), e2etest.Merge(s.column.portmap, n.Portmap)
	rt, err := s.Node.CNI(netlab.CNIOptions{Path: []string{s.column.dir}, Conflist: n.Conflist(s.T), Stderr: s.Stderr})
	if err != nil {
		s.T.Fatal(err)
	}
	return rt
}

// pod attaches one that answers at port 80.
func (s *stage) pod(rt *netlab.Runtime, name string, ports ...e2etest.PortMapping) *e2etest.Pod {
	s.T.Helper()
	p := s.AddPod(rt, name, ports...)
	e2etest.Serve(s.T, p, name, ":80")
	s.pods[name] = p
	return p
}

// results are outcomes by behaviour and column.
type results struct {
	mu    sync.Mutex
	cells map[string]map[string]string
}

func rowName(group string, b behaviour, fam e2etest.Family) string {
	if fam.Name == "-" {
		return group + ": " + b.name
	}
	return fmt.Sprintf("%s: %s, %s", group, b.name, fam.Name)
}

func (r *results) put(row, column, outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cells[row] == nil {
		r.cells[row] = map[string]string{}
	}
	r.cells[row][column] = outcome
}

// run runs one scene in one column.
func (sc parityCase) run(t *testing.T, c column, r *results) {
	s := &stage{World: e2etest.NewWorld(t, sc.options), column: c, pods: map[string]*e2etest.Pod{}}
	s.Configure(c.conf)
	// Every refusal is said: the kernel's limit of ICMP errors to one peer is no part of any behaviour.
	e2etest.MustRun(t, s.Node, "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0")
	sc.build(s)
	s.awaitAddresses()
	var wg sync.WaitGroup
	for _, b := range sc.atOnce {
		for _, fam := range b.families() {
			wg.Go(func() { r.put(rowName(sc.group, b, fam), c.name, b.observe(s, fam)) })
		}
	}
	wg.Wait()
	for _, b := range sc.then {
		for _, fam := range b.families() {
			r.put(rowName(sc.group, b, fam), c.name, b.observe(s, fam))
		}
	}
}

// awaitAddresses waits until no address of the node is tentative: upstream
// lets the kernel look for duplicates (RFC 4862) of a gateway.
func (s *stage) awaitAddresses() {
	s.T.Helper()
	e2etest.Eventually(s.T, 20*time.Second, func() error {
		if out := e2etest.MustRun(s.T, s.Node, "ip -6 -o addr show scope global tentative"); out != "" {
			return errors.New(out)
		}
		return nil
	})
}

// who names an address of the scene.
func (s *stage) who(a netip.Addr) string {
	for _, fam := range e2etest.Families() {
		for i, c := range s.Clients {
			number := strings.Repeat("2", min(i, 1))
			switch a {
			case fam.Node(c):
				return "node" + number
			case fam.Client(c):
				return "client" + number
			}
		}
		for name, p := range s.pods {
			if a == fam.Pod(p) {
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

// scenesToRun are all, or with neither -whole nor -update the first of each feature.
func scenesToRun() []parityCase {
	if *whole || *update {
		return cases()
	}
	return []parityCase{hostPorts(), masquerading(), policies("same-bridge")}
}

// TestPrivilegedParity sees behaviours in every column: all columns agree
// with upstream but for what is listed as deliberate, and everything is as
// docs/dev/parity.md says.
func TestPrivilegedParity(t *testing.T) {
	r := &results{cells: map[string]map[string]string{}}
	columns := append(referenceColumns(t), ourColumns()...)
	t.Run("columns", func(t *testing.T) {
		for _, c := range columns {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if c.require != nil {
					c.require(t)
				}
				for _, sc := range scenesToRun() {
					t.Run(strings.ReplaceAll(sc.group, " ", "_"), func(t *testing.T) { sc.run(t, c, r) })
				}
			})
		}
	})
	judge(t, r)
}
