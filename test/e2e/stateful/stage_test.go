// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// suite is one of the two that are compared.
type suite struct {
	name string
	dir  string // of the plugins
	ours bool
}

// suites are upstream's plugins, by which Sluice is judged, and Sluice's.
func suites(t *testing.T) []suite {
	t.Helper()
	dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall")
	if err != nil {
		t.Fatal(err)
	}
	return []suite{{name: "upstream", dir: dir}, {name: "sluice", dir: e2etest.Programs.Dir, ours: true}}
}

// The ports of the scene. Rulesets let new connections to the open ones through, and none to the shut ones.
const (
	openHostPort, openPort, openOutside = 8080, 80, 9000
	shutHostPort, shutPort, shutOutside = 8081, 81, 9001
)

// shortened are the timeouts of states that a connection leaves at once. An idle connection in such a state is forgotten while
// the test waits, and one that is established lives for days as it does by default.
var shortened = map[string]string{
	"nf_conntrack_tcp_timeout_syn_recv":       "3",
	"nf_conntrack_tcp_timeout_unacknowledged": "4",
	"nf_conntrack_tcp_timeout_max_retrans":    "4",
	"nf_conntrack_udp_timeout":                "4",
}

// stage is one world with the pods of a ruleset.
type stage struct {
	*e2etest.World
	suite suite
	rules ruleset
	hub   *hub

	web, app, left, right *e2etest.Pod

	mu   sync.Mutex
	seen results
	met  gathering

	tracked connections
}

// newStage makes the world: the rules first, as on a node that boots, then the pods.
func newStage(t *testing.T, su suite, r ruleset) *stage {
	t.Helper()
	s := &stage{World: e2etest.NewWorld(t), suite: su, rules: r, hub: newHub(), seen: results{}}
	s.Configure(cmp.Or(*conf, r.conf, `{"relearnSeconds": 1}`))
	s.sysctls()
	if r.before != "" {
		e2etest.RunScript(t, s.World, prelude+r.before)
	}
	chain := r.chain
	if chain == nil {
		chain = []string{"portmap", "firewall"}
	}
	rt := s.RuntimeFrom(e2etest.Network{Plugins: chain}, su.dir)
	s.web = s.AddPod(rt, "web", append(onBoth(openHostPort, openPort), onBoth(shutHostPort, shutPort)...)...)
	s.app = s.AddPod(rt, "app")
	servers := map[e2etest.Place][]int{
		s.web:      {openPort, shutPort, ftpPort, ftpDataPort, otherDataPort},
		s.Client(): {openOutside, shutOutside, ftpPort, ftpDataPort, otherDataPort},
	}
	if r.uses(betweenPTP) {
		n := e2etest.Network{Name: "net1", Main: "ptp", Subnets: []string{"10.2.0.0/16", "fd00:10:2::/64"}, Plugins: chain}
		rt := s.RuntimeFrom(n, su.dir)
		s.left, s.right = s.AddPod(rt, "left"), s.AddPod(rt, "right")
		servers[s.right] = []int{openPort, shutPort}
	}
	if r.after != "" {
		e2etest.RunScript(t, s.World, prelude+r.after)
	}
	for place, ports := range servers {
		for _, port := range ports {
			s.hub.serve(t, place, port)
		}
	}
	e2etest.Eventually(t, 20*time.Second, func() error {
		if out := e2etest.MustRun(t, s.Node, "ip -6 -o addr show scope global tentative"); out != "" {
			return errors.New(out)
		}
		return nil
	})
	return s
}

func (s *stage) sysctls() {
	s.T.Helper()
	keys := map[string]string{"net/ipv4/icmp_ratelimit": "0", "net/ipv6/icmp/ratelimit": "0", "net/ipv6/conf/default/accept_dad": "0"}
	set := maps.Clone(shortened)
	if s.rules.asShipped {
		set = map[string]string{}
	}
	maps.Copy(set, s.rules.sysctls)
	for k, v := range set {
		keys["net/netfilter/"+k] = v
	}
	for k, v := range keys {
		if err := s.Node.WriteSysctl(k, v); err != nil {
			s.T.Fatalf("%s: %v", k, err)
		}
	}
}

// onBoth maps a port for TCP and UDP.
func onBoth(host, pod int) []e2etest.PortMapping {
	return []e2etest.PortMapping{e2etest.TCP(host, pod), e2etest.UDP(host, pod)}
}

// The paths of connections, as they are named in the table.
const (
	byHostPort  = "hostPort"    // client to the node's port, to web
	byPodIP     = "pod address" // client to web's own address
	masqueraded = "masquerade"  // app to the client
	onBridge    = "bridge"      // app to web, on one bridge with br_netfilter
	betweenPTP  = "ptp"         // left to right, by routes of the node
)

// trial is one path in one family with one protocol.
type trial struct {
	path  string
	proto string
	fam   e2etest.Family
}

func (tr trial) String() string { return fmt.Sprintf("%s %s %s", tr.path, tr.proto, tr.fam.Name) }

func (tr trial) network() string { return tr.proto + tr.fam.Suffix }

// from is where the trial's connections begin.
func (s *stage) from(tr trial) e2etest.Place {
	switch tr.path {
	case masqueraded, onBridge:
		return s.app
	case betweenPTP:
		return s.left
	}
	return s.Client()
}

// to is where they go: an open port, or a shut one.
func (s *stage) to(tr trial, open bool) string {
	pick := func(a, b uint16) uint16 {
		if open {
			return a
		}
		return b
	}
	switch tr.path {
	case byHostPort:
		return e2etest.At(tr.fam.Node(s.Client()), pick(openHostPort, shutHostPort))
	case masqueraded:
		return e2etest.At(tr.fam.Client(s.Client()), pick(openOutside, shutOutside))
	}
	return e2etest.At(s.host(tr), pick(openPort, shutPort))
}

// host is the address that a trial's connections go to.
func (s *stage) host(tr trial) netip.Addr {
	switch tr.path {
	case byHostPort:
		return tr.fam.Node(s.Client())
	case masqueraded:
		return tr.fam.Client(s.Client())
	case betweenPTP:
		return tr.fam.Pod(s.right)
	}
	return tr.fam.Pod(s.web)
}

// open begins a conversation at the open port.
func (s *stage) open(tr trial) (*talk, string) {
	return s.hub.open(s.from(tr), tr.network(), s.to(tr, true))
}

// play runs the scenarios of the ruleset: side by side those that disturb no other, the rest one after the other.
func (s *stage) play() {
	var wg sync.WaitGroup
	for _, sc := range s.rules.atOnce {
		if sc.together {
			s.met.absent.Add(len(s.rules.trials(sc)))
		}
	}
	for _, sc := range s.rules.atOnce {
		for _, tr := range s.rules.trials(sc) {
			wg.Go(func() { s.note(sc, tr, sc.run(s, tr)) })
		}
	}
	wg.Wait()
	for _, sc := range s.rules.then {
		for _, tr := range s.rules.trials(sc) {
			s.note(sc, tr, sc.run(s, tr))
		}
	}
	if s.rules.look != "" {
		var out string
		s.DoOnNode(func() (err error) {
			out, err = run(prelude + s.rules.look)
			return err
		})
		s.seen[row{"look", ""}] = outcome{{"rules", strings.TrimSpace(out)}}
	}
}

func (s *stage) note(sc scenario, tr trial, o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[row{sc.name, tr.String()}] = o
}

// fast counts the packets that Sluice's fast path carried.
func (s *stage) fast() (packets uint64) {
	var endpoints []e2etest.Counters
	s.SluiceJSON(s.T, &endpoints, "endpoints")
	for _, e := range endpoints {
		packets += e.RxFast + e.TxFast
	}
	return packets
}
