// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// event changes something. All kinds of changes come about as often as each other.
func (m *model) event() {
	if len(m.deck) == 0 {
		m.deck = []func(){
			m.chooseAnew, m.moveEndpoint, m.moveEndpoint, m.deleteEntry, m.deleteEntry, m.flush, m.changeRules, m.changeRules, m.replacePods,
			m.relearn, m.pass,
		}
		m.rnd.Shuffle(len(m.deck), func(i, j int) { m.deck[i], m.deck[j] = m.deck[j], m.deck[i] })
	}
	next := m.deck[0]
	m.deck = m.deck[1:]
	m.calm()
	next()
}

// chooseAnew has the proxy choose other endpoints for what netfilter does not know.
func (m *model) chooseAnew() {
	m.turn++
	m.log("rules: the proxy chooses anew, turn %d", m.turn)
	m.apply()
}

// flush deletes all of netfilter's entries. What is decided anew goes elsewhere.
func (m *model) flush() {
	m.around(func(*conn) bool { return m.chance(50) }, func() {
		m.chooseAnew()
		m.log("conntrack -F")
		for _, c := range m.conns {
			c.untracked = true
		}
		m.both(func(_ int, l *lab) { l.conntrack("-F") })
	})
}

func (m *model) apply() {
	m.both(func(_ int, l *lab) { e2etest.LoadNFT(m.t, l.Node, m.proxyRules(l)) })
}

// pass lets the time of relearning pass.
func (m *model) pass() {
	if m.relearnSeconds != 1 {
		m.relearn()
		return
	}
	m.log("idle")
	time.Sleep(1300 * time.Millisecond)
}

func (m *model) relearn() {
	m.countKinds()
	m.log("sluice conntrack relearn")
	m.both(func(_ int, l *lab) {
		e2etest.MustRun(m.t, l.Node, e2etest.Programs.Path("sluice")+" conntrack relearn")
	})
}

// addEndpoint gives a Service another endpoint.
func (m *model) addEndpoint(s *service) {
	e := endpoint{port: serverPorts[m.rnd.IntN(2)]}
	switch d := m.rnd.IntN(100); {
	case d < 60:
		e.place = m.slots[m.rnd.IntN(len(m.slots))].name
	case d < 75:
		e.place = "remote"
	case d < 85:
		e.place = []string{"client0", "client1", "node"}[m.rnd.IntN(3)]
	case d < 92:
		e.addrs, e.port = farAddrs, servicePort
	default: // another Service, by way of the router; the last ones have no such endpoint, so nothing goes round in circles
		other := m.services[len(m.services)-1-m.rnd.IntN(2)]
		if other.number <= s.number+1 {
			return
		}
		e.addrs, e.port = [2]netip.Addr{other.virtual(0), other.virtual(1)}, servicePort
	}
	if !slices.Contains(s.endpoints, e) {
		s.endpoints = append(s.endpoints, e)
		m.log("service %d gets %s", s.number, e)
	}
}

// moveEndpoint adds an endpoint, or takes one away and deletes netfilter's entries of UDP for it, as kube-proxy does.
func (m *model) moveEndpoint() {
	s := m.services[m.rnd.IntN(len(m.services))]
	m.around(func(c *conn) bool { return c.service == s }, func() {
		switch {
		case len(s.endpoints) == 0:
			m.addEndpoint(s)
			m.apply()
			m.forget(s, nil)
		case m.chance(40):
			m.addEndpoint(s)
			m.apply()
		default:
			m.removeEndpoint(s, m.rnd.IntN(len(s.endpoints)))
		}
	})
}

func (m *model) removeEndpoint(s *service, i int) {
	e := s.endpoints[i]
	m.log("service %d loses %s", s.number, e)
	s.endpoints = slices.Delete(s.endpoints, i, i+1)
	if m.chance(50) {
		m.turn++
	}
	m.apply()
	m.forget(s, &e)
}

// forget deletes the entries of UDP of a Service, or of one endpoint of it.
func (m *model) forget(s *service, e *endpoint) {
	m.both(func(_ int, l *lab) {
		for family, fam := range e2etest.Families() {
			line := "-D -p udp -f ipv" + fam.Suffix
			if e != nil {
				l.conntrack(fmt.Sprintf("%s --dst-nat %s", line, e.addr(l, family)))
				continue
			}
			for _, to := range []string{
				fmt.Sprintf("--orig-dst %s", s.virtual(family)), fmt.Sprintf("--orig-dst %s", s.external(family)), fmt.Sprintf("--dport %d", s.nodePort()),
			} {
				l.conntrack(line + " " + to)
			}
		}
	})
}

// deleteEntry deletes netfilter's entry of one connection.
func (m *model) deleteEntry() {
	c := m.conns[m.rnd.IntN(len(m.conns))]
	if c.proto == "icmp" {
		return
	}
	m.around(func(other *conn) bool { return other == c }, func() {
		if m.chance(50) {
			m.chooseAnew()
		}
		m.log("conntrack -D of %s", c)
		for _, other := range m.conns {
			other.untracked = other.untracked || other.proto == c.proto && other.family == c.family && other.port == c.port
		}
		m.both(func(_ int, l *lab) {
			l.conntrack(fmt.Sprintf("-D -p %s -f ipv%s --sport %d", c.proto, c.suffix(), c.port))
		})
	})
}

// changeRules adds a rule of an administrator about the server of some connection, or takes it away. A new rule holds for known connections
// when they are relearned.
func (m *model) changeRules() {
	if len(m.rules) > 0 {
		m.log("the rules go: %s", m.rules)
		m.rules = nil
		m.apply()
		return
	}
	c := m.conns[m.rnd.IntN(len(m.conns))]
	place, ok := m.labs[0].places[m.labs[0].serverOf(c)]
	if !ok {
		return
	}
	ip, addr := []string{"ip", "ip6"}[c.family], place.addrs[c.family]
	verdict := []string{"drop", "reject"}[m.rnd.IntN(2)]
	rule := []string{
		fmt.Sprintf("%s daddr %s meta l4proto udp %s", ip, addr, verdict),
		fmt.Sprintf("%s saddr %s meta l4proto { tcp, udp } %s", ip, addr, verdict),
		fmt.Sprintf("meta l4proto { tcp, udp } th dport 8001 %s", verdict),
		fmt.Sprintf("%s daddr %s %s", ip, addr, verdict),
	}[m.rnd.IntN(4)]
	m.around(func(other *conn) bool { return m.labs[0].serverOf(other) == place.name }, func() {
		m.rules = append(m.rules, rule)
		m.log("rules: %s", m.rules)
		m.apply()
		if m.chance(30) {
			m.relearn()
		} else {
			m.pass()
		}
	})
}

// replacePods has two pods go and others come, and exchanges their hostPorts.
func (m *model) replacePods() {
	i, j := m.rnd.IntN(len(m.slots)), m.rnd.IntN(len(m.slots))
	gone := []*slot{m.slots[i]}
	if i != j {
		gone = append(gone, m.slots[j])
	}
	of := func(place string) bool {
		return slices.ContainsFunc(gone, func(s *slot) bool { return s.name == place })
	}
	m.around(func(c *conn) bool { return of(m.labs[0].serverOf(c)) }, func() { m.replace(gone) })
}

func (m *model) replace(gone []*slot) {
	rulesFirst := m.chance(50)
	for _, s := range gone {
		m.log("pod %s goes, with hostPort %d", s.name, s.hostPort)
		var lost []*conn
		for _, c := range m.conns {
			if c.from == s.name || c.proto == "icmp" && c.toName == s.name {
				lost = append(lost, c)
			}
		}
		for _, c := range lost {
			m.drop(c)
		}
		m.over = slices.DeleteFunc(m.over, func(c *conn) bool { return c.from == s.name })
		if rulesFirst {
			m.leaveServices(s)
		}
	}
	// Connections of TCP whose server goes end with it. Datagrams of the others go on, wherever they go to then.
	m.both(func(_ int, l *lab) {
		for _, s := range gone {
			l.removePod(s)
		}
	})
	m.forgetDead(gone)
	var old [][2]netip.Addr
	for _, s := range gone {
		old = append(old, m.addrs[s.name])
	}
	if len(gone) == 2 {
		gone[0].hostPort, gone[1].hostPort = gone[1].hostPort, gone[0].hostPort
	}
	for _, s := range gone {
		s.generation++
	}
	m.both(func(_ int, l *lab) {
		for _, s := range gone {
			l.addPod(s)
		}
	})
	for _, s := range gone {
		if p, q := m.labs[0].places[s.name], m.labs[1].places[s.name]; p.addrs != q.addrs {
			m.t.Fatalf("%s has %v and %v", s.name, p.addrs, q.addrs)
		}
		m.addrs[s.name] = m.labs[0].places[s.name].addrs
		m.log("pod %s comes, %v, with hostPort %d", s.name, m.labs[0].places[s.name].addrs, s.hostPort)
	}
	m.apply()
	m.both(func(_ int, l *lab) {
		for _, addrs := range old {
			for family, fam := range e2etest.Families() {
				l.conntrack(fmt.Sprintf("-D -p udp -f ipv%s --dst-nat %s", fam.Suffix, addrs[family]))
			}
		}
	})
	m.awaitAddresses()
}

// awaitAddresses waits until the addresses of new devices are in use.
func (m *model) awaitAddresses() {
	m.both(func(_ int, l *lab) {
		e2etest.Eventually(m.t, 20*time.Second, func() error {
			if out := e2etest.MustRun(m.t, l.Node, "ip -6 -o addr show tentative"); out != "" {
				return errors.New(out)
			}
			return nil
		})
	})
}

// leaveServices takes a pod out of all Services.
func (m *model) leaveServices(s *slot) {
	for _, svc := range m.services {
		for i := len(svc.endpoints) - 1; i >= 0; i-- {
			if svc.endpoints[i].place == s.name {
				m.removeEndpoint(svc, i)
			}
		}
	}
}

// forgetDead drops the TCP connections whose server's pod is gone.
func (m *model) forgetDead(gone []*slot) {
	var lost []*conn
	for _, c := range m.conns {
		if c.proto != "tcp" {
			c.met = c.met && !slices.ContainsFunc(gone, func(s *slot) bool { return m.labs[0].serverOf(c) == s.name })
			continue
		}
		if slices.ContainsFunc(gone, func(s *slot) bool { return m.labs[0].serverOf(c) == s.name }) {
			lost = append(lost, c)
		}
	}
	for _, c := range lost {
		m.drop(c)
	}
}
