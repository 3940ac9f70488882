// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

var (
	packets = flag.Int("packets", 0, "messages that TestPrivilegedModel sends in each of the two labs, in all worlds together; 0: some thousands")
	seed    = flag.Uint64("seed", 0, "the only seed of TestPrivilegedModel, instead of fixed ones and a random one")
)

// model is a pair of labs in which the same happens.
type model struct {
	t    *testing.T
	rnd  *rand.Rand
	seed uint64
	all  *tally
	labs [2]*lab // with the fast path, without

	services []*service
	slots    []*slot
	addrs    map[string][2]netip.Addr // of the pods
	rules    []string                 // of an administrator
	turn     int                      // of the proxy's choice of endpoints
	deck     []func()                 // the events that come next
	conns    []*conn
	over     []*conn // connections that have ended, so their clients' ports are free

	// The setting of this world.
	dropInvalid    bool // kube-proxy drops what netfilter calls invalid
	randomPorts    bool // netfilter's masquerade draws the ports
	relearnSeconds int
	setting        string

	steps, lastConn, arrived int
	sent                     map[int]*conn // by the number of the message
	journal                  []string
}

// slot is a pod, and then the one that takes its place.
type slot struct {
	name                string
	network, generation int
	hostPort            int
}

// Whatever happens, each message arrives where the stack delivers it, with the source, the hops and the class that it has there.
func TestPrivilegedModel(t *testing.T) {
	t.Parallel()
	require.ConntrackBTF(t)
	n := *packets
	if n == 0 {
		n = netlab.Fewer(5000, 3000)
	}
	perWorld := min(5000, max(1, n/4))
	var seeds []uint64
	for i := range n/perWorld - 1 {
		seeds = append(seeds, uint64(i+1))
	}
	seeds = append(seeds, 1000+rand.Uint64N(1_000_000)) // its number is the subtest's name
	if *seed != 0 {
		seeds = []uint64{*seed}
	}
	all := &tally{kinds: map[string]int{}}
	t.Cleanup(func() {
		if !t.Failed() {
			all.check(t)
		}
	})
	for _, s := range seeds {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			t.Parallel()
			newModel(t, s, all).play(perWorld)
		})
	}
}

// tally is what all worlds had on the fast path.
type tally struct {
	mu            sync.Mutex
	packets, fast uint64
	kinds         map[string]int // connections that were fast, counted now and then
}

// check wants a good part of all packets on the fast path, and connections of each kind.
func (a *tally) check(t *testing.T) {
	t.Logf("%d of %d packets took the fast path; fast connections: %v", a.fast, a.packets, a.kinds)
	want := uint64(15) // per cent
	if *seed != 0 {
		want = 5 // worlds differ
	}
	if a.fast*100 < a.packets*want {
		t.Errorf("%d of %d packets took the fast path, want %d %% at least", a.fast, a.packets, want)
	}
	for _, kind := range []string{"hostport", "masquerade", "netfilter", "plain"} {
		if *seed == 0 && a.kinds[kind] == 0 {
			t.Errorf("no connection of the kind %s was on the fast path", kind)
		}
	}
}

func newModel(t *testing.T, seed uint64, all *tally) *model {
	t.Helper()
	m := &model{
		t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 60)), all: all,
		addrs: map[string][2]netip.Addr{}, sent: map[int]*conn{},
	}
	bridges := m.chance(50)
	m.dropInvalid, m.randomPorts = m.chance(50), m.chance(30)
	m.relearnSeconds = []int{1, 1, 1, 2, 5, 0}[m.rnd.IntN(6)]
	m.setting = fmt.Sprintf("bridges call netfilter: %v, invalid packets are dropped: %v, netfilter's masquerade draws ports: %v, relearnSeconds: %d",
		bridges, m.dropInvalid, m.randomPorts, m.relearnSeconds)
	for i, n := range []int{0, 0, 1, 1, 2, 3, 3, 4} {
		m.slots = append(m.slots, &slot{name: fmt.Sprintf("pod%d", i), network: n})
	}
	for i := range 4 {
		m.slots[2*i].hostPort = 8080 + i
	}
	for i := range 6 {
		m.services = append(m.services, &service{number: i, masqAll: m.chance(30), local: m.chance(40)})
	}
	confs := [2]string{fmt.Sprintf(`{"relearnSeconds": %d}`, m.relearnSeconds), `{"fastPath": "off"}`}
	m.both(func(i int, _ *lab) {
		m.labs[i] = newLab(t, []string{"fast", "slow"}[i], confs[i], bridges)
		for _, s := range m.slots {
			m.labs[i].addPod(s)
		}
	})
	m.awaitAddresses()
	for name, p := range m.labs[0].places {
		if q := m.labs[1].places[name]; p.addrs != q.addrs {
			t.Fatalf("%s has %v and %v", name, p.addrs, q.addrs)
		}
		m.addrs[name] = p.addrs
	}
	for _, s := range m.services {
		for range 1 + m.rnd.IntN(3) {
			m.addEndpoint(s)
		}
	}
	m.apply()
	return m
}

// both does something in both labs at once.
func (m *model) both(f func(i int, l *lab)) {
	m.t.Helper()
	var wg sync.WaitGroup
	for i, l := range m.labs {
		wg.Go(func() { f(i, l) })
	}
	wg.Wait()
	if m.t.Failed() {
		m.t.FailNow()
	}
}

func (m *model) chance(percent int) bool { return m.rnd.IntN(100) < percent }

func (m *model) next() int {
	m.steps++
	return m.steps
}

// size is that of a message.
func (m *model) size(c *conn) int {
	switch {
	case c.proto == "tcp" && m.chance(20):
		return m.rnd.IntN(20_000)
	case c.proto != "tcp" && m.chance(5): // fragments
		return 1500 + m.rnd.IntN(3000)
	}
	return m.rnd.IntN(1200)
}

func (m *model) log(format string, args ...any) {
	m.journal = append(m.journal, fmt.Sprintf(format, args...))
}

// differ ends the test: the labs have seen different things.
func (m *model) differ(steps []outcome) {
	m.t.Helper()
	var b strings.Builder
	told := map[*conn]bool{}
	for _, o := range steps {
		fast, slow := m.labs[0].some(o.keys), m.labs[1].some(o.keys)
		if maps.Equal(fast, slow) {
			continue
		}
		fmt.Fprintf(&b, "%s\n", o.what)
		for _, k := range o.keys {
			if fast[k] != slow[k] {
				fmt.Fprintf(&b, "    %s: with the fast path %q, without %q\n", k, fast[k], slow[k])
			}
		}
		if !told[o.conn] {
			told[o.conn] = true
			fmt.Fprintln(&b, strings.Join(m.about(o.conn), "\n"))
		}
	}
	m.t.Fatalf("seed %d: the labs differ (%s):\n%s", m.seed, m.setting, b.String())
}

// play sends n messages, and lets things happen in between.
func (m *model) play(n int) {
	for len(m.conns) < 16 {
		m.openOne()
	}
	m.batch(40)
	time.Sleep(2100 * time.Millisecond) // datagrams take the fast path when netfilter has its entry as a stream, which it is after two seconds
	for m.steps < n {
		switch d := m.rnd.IntN(1000); {
		case len(m.conns) < 8 || d < 120 && len(m.conns) < 24:
			m.openOne()
		case d < 170:
			m.endOne()
		case d < 250:
			m.talk(m.conns[m.rnd.IntN(len(m.conns))], 10+m.rnd.IntN(50))
		case d < 380:
			m.event()
		default:
			m.batch(1 + m.rnd.IntN(20))
		}
	}
	for _, c := range slices.Clone(m.conns) {
		m.talk(c, 10)
	}
	m.calm()
	m.compareAll()
	m.count()
}

// count adds what was fast, and looks that nothing was where the fast path is off.
func (m *model) count() {
	fast, slow := m.labs[0].counters(), m.labs[1].counters()
	m.t.Logf("%d messages, of which %d arrived; %d of %d packets took the fast path; %s",
		m.steps, m.arrived, fast.RxFast+fast.TxFast, fast.RxPackets+fast.TxPackets, m.setting)
	if slow.RxFast+slow.TxFast != 0 {
		m.t.Errorf("%d packets took the fast path where it is off", slow.RxFast+slow.TxFast)
	}
	m.countKinds()
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.all.packets += fast.RxPackets + fast.TxPackets
	m.all.fast += fast.RxFast + fast.TxFast
}

func (m *model) countKinds() {
	var list []struct {
		Kind string
		Fast bool
	}
	m.labs[0].SluiceJSON(m.t, &list, "conntrack", "list")
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	for _, c := range list {
		if c.Fast {
			m.all.kinds[c.Kind]++
		}
	}
}

// compareAll compares what came of datagrams, also of those that came late or twice.
func (m *model) compareAll() {
	fast, slow := m.labs[0], m.labs[1]
	for step := range m.steps + 1 {
		for _, k := range []string{messageKey(step), replyKey(step)} {
			f, s := fast.some([]string{k}), slow.some([]string{k})
			if !maps.Equal(f, s) {
				m.t.Errorf("seed %d: %s: with the fast path %q, without %q\n%s", m.seed, k, f[k], s[k], strings.Join(m.about(m.sent[step]), "\n"))
			}
		}
	}
}

// about is the last of what has happened to a connection, and of what may have changed its way.
func (m *model) about(c *conn) (lines []string) {
	tuple := fmt.Sprintf(" from %s:%d to %s ", c.from, c.port, c.to) // earlier connections had it too
	for _, line := range m.journal {
		if strings.Contains(line, tuple) && strings.Contains(line, c.proto+c.suffix()) || !strings.Contains(line, " from ") {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-60):]
}

// batch sends n messages at once, on connections that can take them: one way on each, and on one of those that have a port in common. So
// nothing depends on which of two packets passes the node first.
func (m *model) batch(n int) {
	var steps []outcome
	used := map[string]bool{}
	for tries := 0; tries < 20 && len(m.conns) > 0 && n > 0; tries++ {
		c := m.conns[m.rnd.IntN(len(m.conns))]
		key := fmt.Sprint(c.proto, c.family, c.port)
		toClient := m.chance(50) && c.met && c.proto != "icmp"
		if used[key] || c.proto == "tcp" && (!c.met || toClient && c.shut[1] || !toClient && c.shut[0]) {
			continue
		}
		used[key] = true
		for range 1 + m.rnd.IntN(8) {
			n--
			steps = append(steps, m.send(c, toClient))
		}
	}
	m.await(steps, nil)
}

// talk sends messages to and fro on one connection, each when the one before has arrived.
func (m *model) talk(c *conn, n int) {
	for i := range n {
		toClient := i%2 == 1 && c.proto != "icmp"
		if !slices.Contains(m.conns, c) || !c.met && (toClient || c.proto == "tcp") || c.shut[0] || c.shut[1] {
			return
		}
		m.await([]outcome{m.send(c, toClient)}, nil)
	}
}

// around does something to some connections. They are on the fast path before, if they may be there, and none of their packets is on its
// way. The first message behind it goes either way.
func (m *model) around(which func(*conn) bool, do func()) {
	var some []*conn
	for _, c := range m.conns {
		if len(some) < 5 && which(c) {
			some = append(some, c)
		}
	}
	for _, c := range some {
		m.talk(c, 6)
	}
	m.calm()
	do()
	for _, c := range some {
		if m.chance(50) && slices.Contains(m.conns, c) && c.met && c.proto != "icmp" && !c.shut[1] {
			m.await([]outcome{m.send(c, true)}, nil)
		}
		m.talk(c, 4)
	}
}

// openOne begins a connection of some kind.
func (m *model) openOne() {
	m.lastConn++
	c := &conn{id: m.lastConn, family: m.rnd.IntN(2), port: uint16(40_000 + m.lastConn%20_000)}
	fam := e2etest.Families()[c.family]
	l := m.labs[0]
	client := m.rnd.IntN(2)
	node := fam.Node(l.Clients[client])
	pod := func() string { return m.slots[m.rnd.IntN(len(m.slots))].name }
	c.proto = []string{"tcp", "tcp", "tcp", "tcp", "udp", "udp", "udp", "icmp"}[m.rnd.IntN(8)]
	port := serverPorts[m.rnd.IntN(2)]
	kind := m.rnd.IntN(10)
	switch {
	case c.proto == "icmp":
		c.from = pod()
		c.toName = []string{"client0", "client1", "remote", pod(), pod()}[m.rnd.IntN(5)]
		if m.chance(30) {
			c.from, c.toName = "client0", pod()
		}
		c.to = netip.AddrPortFrom(l.places[c.toName].addrs[c.family], 0)
	case kind < 4: // a Service's virtual address
		s := m.services[m.rnd.IntN(len(m.services))]
		c.service = s
		c.from, c.to, c.toName = pod(), netip.AddrPortFrom(s.virtual(c.family), servicePort), fmt.Sprintf("service %d", s.number)
		if m.chance(15) {
			c.from = "node"
		}
	case kind < 6: // its port of the node, its external address
		s := m.services[m.rnd.IntN(len(m.services))]
		c.service = s
		c.from, c.toName = fmt.Sprintf("client%d", client), fmt.Sprintf("service %d", s.number)
		if m.chance(30) {
			c.from = pod()
		}
		c.to = netip.AddrPortFrom(node, s.nodePort())
		if m.chance(30) {
			c.to = netip.AddrPortFrom(s.external(c.family), servicePort)
		}
	case kind < 8: // a hostPort
		c.from, c.to, c.toName = fmt.Sprintf("client%d", client), netip.AddrPortFrom(node, uint16(8080+m.rnd.IntN(4))), "hostPort"
		if m.chance(30) {
			c.from = pod()
		}
	default: // no translation, or a masquerade only
		c.from, c.toName = pod(), []string{"client0", "client1", "remote", pod(), "node"}[m.rnd.IntN(5)]
		if m.chance(30) {
			c.from, c.toName = "client0", pod()
		}
		c.to = netip.AddrPortFrom(l.places[c.toName].addrs[c.family], port)
	}
	if c.from == c.toName && c.proto == "icmp" {
		return
	}
	c.class = m.rnd.IntN(64) << 2
	if m.chance(25) && len(m.over) > 0 { // the same ports once more
		i := m.rnd.IntN(len(m.over))
		old := m.over[i]
		m.over = slices.Delete(m.over, i, i+1)
		if _, ok := m.addrs[old.from]; ok || !strings.HasPrefix(old.from, "pod") {
			c.proto, c.family, c.from, c.port = old.proto, old.family, old.from, old.port
			c.to, c.service, c.toName = old.to, old.service, strings.TrimSuffix(old.toName, ", again")+", again"
		}
	}
	if slices.ContainsFunc(m.conns, func(x *conn) bool {
		return x.from == c.from && x.proto == c.proto && x.family == c.family && x.port == c.port
	}) {
		return
	}
	if m.chance(15) && len(m.conns) > 0 { // somebody else has the port too
		other := m.conns[m.rnd.IntN(len(m.conns))]
		if !slices.ContainsFunc(m.conns, func(x *conn) bool {
			return x.from == c.from && x.proto == c.proto && x.family == c.family && x.port == other.port
		}) {
			c.port = other.port
		}
	}
	m.log("open %s", c)
	m.open(c)
}

// endOne ends a TCP connection, or a direction of it.
func (m *model) endOne() {
	c := m.conns[m.rnd.IntN(max(1, len(m.conns)))]
	if c.proto != "tcp" {
		if m.chance(30) {
			m.log("forget %s", c)
			m.over = append(m.over, c)
			m.drop(c)
		}
		return
	}
	if !c.met {
		return
	}
	server := m.chance(50)
	if server && c.shut[1] || !server && c.shut[0] {
		server = !server
	}
	reset := m.chance(30)
	if c.service == nil && c.untracked && m.dropInvalid {
		return // a known gap: the end of a fast connection is invalid to netfilter, which has lost its entry
	}
	m.finish(c, server, reset)
}
