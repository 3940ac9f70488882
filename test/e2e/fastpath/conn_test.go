// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// conn is a connection that is open in both labs: of TCP, or the datagrams and echoes between two ends.
type conn struct {
	id     int
	proto  string // tcp, udp, icmp
	family int    // 0 is IPv4
	from   string // the client's place
	port   uint16 // the client's port, or its identifier
	class  int    // traffic class of what the client sends by UDP
	to     netip.AddrPort
	toName string

	service *service     // to which the client connects, if any
	ends    [2]clientEnd // by lab
	shut    [2]bool      // the client sends nothing more, or the server does
	met     bool         // a server has got something, in both labs
	lost    int          // messages in a row that nobody got

	untracked bool // netfilter's entry was deleted
}

func (c *conn) suffix() string { return e2etest.Families()[c.family].Suffix }

func (c *conn) String() string {
	return fmt.Sprintf("%s%s %d from %s:%d to %s (%s)", c.proto, c.suffix(), c.id, c.from, c.port, c.to, c.toName)
}

// outcome is what a step can be seen by: one of the keys at least, if anything arrives.
type outcome struct {
	what string
	keys []string
	conn *conn
}

// open begins a connection. TCP sends its first message behind the handshake.
func (m *model) open(c *conn) {
	m.conns = append(m.conns, c)
	if c.proto == "icmp" {
		return
	}
	if c.proto == "udp" {
		m.both(func(i int, l *lab) {
			var err error
			if c.ends[i], err = l.openUDP(c); err != nil {
				l.T.Errorf("%s in the lab %s: %v", c, l.name, err)
			}
		})
		return
	}
	step := m.next()
	m.sent[step] = c
	first := newMessage(c, step, m.size(c))
	m.both(func(i int, l *lab) { c.ends[i] = l.dial(c, first) })
	// Whoever answers the handshake gets the message behind it.
	o := outcome{"open " + c.String(), []string{openKey(c.id), messageKey(step), endKey(c.id, false), endKey(c.id, true)}, c}
	m.await([]outcome{o}, func(got map[string]string) bool {
		return got[openKey(c.id)] != "open" || got[messageKey(step)] != "" || got[endKey(c.id, false)] != ""
	})
}

// send sends a message to the server, or to the client.
func (m *model) send(c *conn, toClient bool) outcome {
	step := m.next()
	b := newMessage(c, step, m.size(c))
	o := outcome{fmt.Sprintf("message %d, %d bytes, %s on %s", step, len(b), map[bool]string{true: "to the client", false: "to the server"}[toClient], c), []string{messageKey(step)}, c}
	m.log("%s", o.what)
	m.sent[step] = c
	for i, l := range m.labs {
		switch {
		case c.proto == "icmp":
			p := l.places[c.from]
			echo := e2etest.Families()[c.family].Echo()
			_, _ = p.echo[c.family].WriteTo(echo.Message(c.port, uint16(step), b), &net.IPAddr{IP: c.to.Addr().AsSlice()})
		case c.proto == "udp" && toClient:
			l.mu.Lock()
			p := l.peers[c.id]
			l.mu.Unlock()
			_, _ = p.server.WriteTo(b, net.UDPAddrFromAddrPort(p.client))
		case c.proto == "udp":
			_, _ = c.ends[i].udp.WriteToUDPAddrPort(b, c.to)
		default:
			end := c.ends[i].get()
			if toClient {
				end = l.server(c)
			}
			_ = end.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = end.Write(b)
		}
	}
	switch c.proto {
	case "icmp":
		o.keys = append(o.keys, replyKey(step))
	case "tcp":
		for server, over := range []bool{c.shut[1], c.shut[0]} { // an end that was seen before says nothing
			if !over {
				o.keys = append(o.keys, endKey(c.id, server == 1))
			}
		}
	}
	return o
}

// finish ends a direction of a TCP connection, or all of it by a RST, as the given end.
func (m *model) finish(c *conn, server, reset bool) {
	o := outcome{fmt.Sprintf("end %s as the server %v, by a RST %v", c, server, reset), []string{endKey(c.id, !server)}, c}
	m.log("%s", o.what)
	for i, l := range m.labs {
		end := c.ends[i].get()
		if server {
			end = l.server(c)
		}
		idle(end)
		if reset {
			abort(end)
		} else {
			_ = end.CloseWrite()
		}
	}
	which := 0
	if server {
		which = 1
	}
	c.shut[which] = true
	if c.shut[1-which] { // the other end has ended before: nothing more is seen of it
		m.calm()
		m.drop(c)
		return
	}
	m.await([]outcome{o}, nil)
	if reset {
		if slices.Contains(m.conns, c) { // the other end was told
			m.over = append(m.over, c)
		}
		m.drop(c)
	}
}

// drop forgets a connection.
func (m *model) drop(c *conn) {
	for i, l := range m.labs {
		c.ends[i].abort()
		abort(l.server(c))
	}
	m.conns = slices.DeleteFunc(m.conns, func(other *conn) bool { return other == c })
}

// calm waits until no packet is on its way.
func (m *model) calm() {
	for _, c := range m.conns {
		if c.proto != "tcp" {
			continue
		}
		for i, l := range m.labs {
			idle(c.ends[i].get())
			idle(l.server(c))
		}
	}
}

// await waits until both labs have seen the same of each step, and something of each. If nothing arrives in either, a short time is enough.
// complete says when enough is there of the only step.
func (m *model) await(steps []outcome, complete func(map[string]string) bool) {
	m.t.Helper()
	const tick = 5 * time.Millisecond
	patience := netlab.Patient(5 * time.Second)
	still := time.Duration(0) // grows by ticks: where the machine is busy, receivers get their time too
	for {
		same, all, quiet := true, true, time.Duration(0)
		for _, o := range steps {
			fast, slow := m.labs[0].some(o.keys), m.labs[1].some(o.keys)
			same = same && maps.Equal(fast, slow)
			if len(fast) == 0 || complete != nil && !complete(fast) || o.conn.proto == "icmp" && len(fast) < 2 {
				all, quiet = false, max(quiet, netlab.Patient(silence[o.conn.proto]))
			}
		}
		if same && (all || still > quiet) {
			break
		}
		if !same && still > patience {
			m.differ(steps)
			return
		}
		select {
		case <-m.labs[0].rung:
		case <-m.labs[1].rung:
		case <-time.After(tick):
			still += tick
		}
	}
	for _, o := range steps {
		got := m.labs[0].some(o.keys)
		if _, ok := got[o.keys[0]]; ok {
			m.arrived++
			if o.conn.proto != "tcp" || got[openKey(o.conn.id)] == "open" || got[openKey(o.conn.id)] == "" {
				o.conn.met = true
			}
		}
		if o.conn.proto != "tcp" {
			if len(got) > 0 {
				o.conn.lost = 0
			} else if o.conn.lost++; o.conn.lost > 6 { // it leads nowhere
				m.log("forget %s", o.conn)
				m.drop(o.conn)
			}
			continue
		}
		_, clientEnd := got[endKey(o.conn.id, false)]
		_, serverEnd := got[endKey(o.conn.id, true)]
		if len(got) == 0 || clientEnd && !o.conn.shut[1] || serverEnd && !o.conn.shut[0] || complete != nil && (got[o.keys[0]] != "open" || got[o.keys[1]] == "") {
			m.drop(o.conn)
		}
	}
}

// silence is how long nothing must come before a message counts as lost. TCP repeats what is lost, the first time after 200 ms.
var silence = map[string]time.Duration{"tcp": 450 * time.Millisecond, "udp": 30 * time.Millisecond, "icmp": 30 * time.Millisecond}
