// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// observation is one thing that was seen. note is said with a difference and not compared.
type observation struct{ what, value string }

// outcome is all that a scenario saw, in order.
type outcome []observation

func (o *outcome) see(what, value string) { *o = append(*o, observation{what, value}) }

// row names an outcome within a ruleset.
type row struct{ scenario, trial string }

// results are the outcomes of one suite with one ruleset.
type results map[row]outcome

// scenario is what is done over a path.
type scenario struct {
	name   string
	protos []string // TCP if none
	// together says that all trials meet before they go on (see gathering).
	together bool
	run      func(s *stage, tr trial) outcome
}

var (
	udp  = []string{"udp"}
	both = []string{"tcp", "udp"}
)

// How long conversations go on. Sluice learns a connection from its first packets, and learns it anew each second here.
const (
	young     = 500 * time.Millisecond
	relearned = 3400 * time.Millisecond
	pause     = 80 * time.Millisecond
	// settled is when the last acknowledgement is on its way for certain.
	settled = 300 * time.Millisecond
)

const (
	server = true
	client = false
)

func speaker(fromServer bool) string {
	if fromServer {
		return "server"
	}
	return "client"
}

// refused is a connection that the rules do not admit.
func refused() scenario {
	return scenario{name: "shut port", protos: both, run: func(s *stage, tr trial) outcome {
		t, verdict := s.hub.open(s.from(tr), tr.network(), s.to(tr, false))
		if t != nil {
			t.close()
		}
		return outcome{{"opens", verdict}}
	}}
}

// begin opens a conversation and holds it for a while.
func (s *stage) begin(tr trial, d time.Duration) (*talk, outcome) {
	var o outcome
	t, verdict := s.open(tr)
	o.see("opens", verdict)
	if t == nil {
		return nil, o
	}
	if err := t.exchange(d, pause); err != nil {
		o.see("exchange", verdictOf(err))
	} else {
		o.see("exchange", "arrives")
	}
	time.Sleep(settled)
	o.see("entry", s.entryOf(t.proto, t.from))
	return t, o
}

// finish closes a conversation and looks at what it leaves.
func (s *stage) finish(t *talk, o *outcome, end func(*talk)) {
	end(t)
	if t.proto == "udp" {
		return
	}
	time.Sleep(500 * time.Millisecond)
	o.see("entry after the end", s.entryOf(t.proto, t.from))
}

// idle is a conversation that rests, and then one end speaks first.
func idle(age string, d time.Duration, fromServer bool, protos ...string) scenario {
	return scenario{name: fmt.Sprintf("%s, idle, %s first", age, speaker(fromServer)), protos: protos, run: func(s *stage, tr trial) outcome {
		t, o := s.begin(tr, d)
		if t == nil {
			return o
		}
		time.Sleep(s.rules.rest())
		o.see("entry after idle", s.entryOf(t.proto, t.from))
		o.see("first word", t.word(fromServer))
		o.see("answer", t.word(!fromServer))
		time.Sleep(settled)
		o.see("entry then", s.entryOf(t.proto, t.from))
		s.finish(t, &o, (*talk).close)
		return o
	}}
}

// ended is a conversation that ends in a certain way.
func ended(how string, d time.Duration, end func(*talk)) scenario {
	return scenario{name: how, run: func(s *stage, tr trial) outcome {
		t, o := s.begin(tr, d)
		if t != nil {
			s.finish(t, &o, end)
		}
		return o
	}}
}

// half is a conversation of which the client closes its direction, and the server goes on speaking after a rest.
func half() scenario {
	return scenario{name: "half closed", run: func(s *stage, tr trial) outcome {
		t, o := s.begin(tr, young)
		if t == nil {
			return o
		}
		_ = t.client.conn.(*net.TCPConn).CloseWrite()
		time.Sleep(settled)
		o.see("entry half closed", s.entryOf(t.proto, t.from))
		o.see("server", t.word(server))
		time.Sleep(s.rules.rest())
		o.see("server after idle", t.word(server))
		s.finish(t, &o, (*talk).close)
		return o
	}}
}

// standing is what most rulesets go through.
func standing() []scenario {
	return append(talks(), datagrams()...)
}

func talks() []scenario {
	return []scenario{
		refused(),
		idle("young", young, server), idle("young", young, client),
		idle("relearned", relearned, server), idle("relearned", relearned, client),
		ended("closed", young, (*talk).close), ended("closed late", relearned, (*talk).close), ended("reset", young, (*talk).abort), half(),
	}
}

func datagrams() []scenario {
	return []scenario{idle("datagrams", relearned, server, udp...), idle("datagrams", relearned, client, udp...)}
}

// many opens n conversations, rests, and counts those whose server is heard.
func many(n int, d time.Duration) scenario {
	return scenario{name: fmt.Sprintf("%d connections, idle, server first", n), run: func(s *stage, tr trial) outcome {
		talks := make([]*talk, n)
		fs := make([]func(), n)
		for i := range n {
			fs[i] = func() {
				if talks[i], _ = s.open(tr); talks[i] != nil && talks[i].exchange(d, pause) != nil {
					talks[i] = nil
				}
			}
		}
		e2etest.AtOnce(fs...)
		time.Sleep(settled)
		before := s.census(s.opened(tr))
		time.Sleep(s.rules.rest())
		var entries, arrived int
		heard := make([]bool, n)
		for i, t := range talks {
			if t != nil && s.entryOf("tcp", t.from) != "none" {
				entries++
			}
			fs[i] = func() { heard[i] = t != nil && t.say(server) == nil }
		}
		e2etest.AtOnce(fs...)
		for i, t := range talks {
			if heard[i] {
				arrived++
			}
			fs[i] = func() {
				if t != nil {
					t.abort()
				}
			}
		}
		e2etest.AtOnce(fs...)
		return outcome{{"entries", before}, {"entries after idle", fmt.Sprint(entries)}, {"heard", fmt.Sprintf("%d of %d", arrived, n)}}
	}}
}

// short opens n conversations one after the other, each closed before the next. A few may find the place of the one before taken.
func short(n int) scenario {
	return scenario{name: fmt.Sprintf("%d short connections", n), run: func(s *stage, tr trial) outcome {
		passed := 0
		for range n {
			if s.brief(tr) {
				passed++
			}
		}
		time.Sleep(settled)
		share := fmt.Sprintf("%d of %d", passed, n)
		if passed*10 >= n*9 {
			share = "nearly all"
		}
		return outcome{{"pass", share}, {"entries left", s.census(s.opened(tr))}}
	}}
}

// burst opens n conversations one after the other as fast as it can, and counts exactly.
func burst(n int, protos ...string) scenario {
	return scenario{name: fmt.Sprintf("burst of %d", n), protos: protos, run: func(s *stage, tr trial) outcome {
		passed := 0
		for range n {
			if s.brief(tr) {
				passed++
			}
		}
		return outcome{{"pass", fmt.Sprintf("%d of %d", passed, n)}}
	}}
}

// brief is a whole conversation of two words.
func (s *stage) brief(tr trial) bool {
	t, _ := s.hub.openWithin(wordTimeout, s.from(tr), tr.network(), s.to(tr, true))
	if t == nil {
		return false
	}
	defer t.close()
	return t.say(client) == nil && t.say(server) == nil
}

// opened are the entries of connections that a trial's client has opened.
func (s *stage) opened(tr trial) func(e2etest.Tracked) bool {
	from := tr.fam.Client(s.Client())
	if tr.path == masqueraded || tr.path == onBridge {
		from = tr.fam.Pod(s.app)
	}
	return func(e e2etest.Tracked) bool { return e.Proto == tr.proto && e.Original.Addr() == from }
}

// parallel holds connections until the rules refuse, closes them, and opens one more.
func parallel(n int) scenario {
	return scenario{name: fmt.Sprintf("%d at once", n), run: func(s *stage, tr trial) outcome {
		var o outcome
		var held []*talk
		for range n {
			t, _ := s.hub.openWithin(wordTimeout, s.from(tr), tr.network(), s.to(tr, true))
			if t != nil {
				held = append(held, t)
				_ = t.exchange(100*time.Millisecond, pause)
			}
		}
		o.see("open", fmt.Sprintf("%d of %d", len(held), n))
		time.Sleep(s.rules.rest())
		t, verdict := s.open(tr)
		o.see("one more after idle", verdict)
		for _, t := range append(held, t) {
			if t != nil {
				t.close()
			}
		}
		time.Sleep(500 * time.Millisecond)
		t, verdict = s.open(tr)
		o.see("one more after the end", verdict)
		if t != nil {
			t.close()
		}
		return o
	}}
}

// gathering is where conversations meet, so that what concerns all of them is done once.
type gathering struct {
	absent sync.WaitGroup
	once   sync.Once
	err    error
}

// act waits for the others, does f once, and says for all how that ended. What has no conversation does nothing.
func (g *gathering) act(f func() error) error {
	g.absent.Done()
	g.absent.Wait()
	g.once.Do(func() { g.err = f() })
	return g.err
}

// forgotten is a conversation whose entry an administrator removes: alone, or with all others.
func forgotten(how string, fromServer bool) scenario {
	name := fmt.Sprintf("conntrack %s, %s first", how, speaker(fromServer))
	return scenario{name: name, protos: both, together: true, run: func(s *stage, tr trial) outcome {
		t, o := s.begin(tr, relearned)
		if t == nil {
			_ = s.met.act(func() error { return nil })
			return o
		}
		err := s.met.act(func() error {
			if how != "-F" {
				return nil
			}
			return s.Node.Do(func() error { _, err := run("conntrack -F >/dev/null 2>&1"); return err })
		})
		if how == "-D" {
			line := fmt.Sprintf("conntrack -D -f ipv%s -p %s --orig-src %s --orig-port-src %d >/dev/null 2>&1", tr.fam.Suffix, tr.proto, t.from.Addr(), t.from.Port())
			err = s.Node.Do(func() error { _, err := run(line); return err })
		}
		o.see("removed", said(err))
		time.Sleep(1200 * time.Millisecond) // relearnSeconds
		o.see("first word", t.word(fromServer))
		o.see("answer", t.word(!fromServer))
		time.Sleep(settled)
		o.see("entry then", s.entryOf(t.proto, t.from))
		t.abort()
		return o
	}}
}

func said(err error) string {
	if err != nil {
		return "no"
	}
	return "yes"
}

// later is a rule that an administrator adds while conversations go on.
func later(rule string) scenario {
	return scenario{name: "later rule", protos: both, together: true, run: func(s *stage, tr trial) outcome {
		t, o := s.begin(tr, relearned)
		err := s.met.act(func() error {
			return s.Node.Do(func() error { _, err := run(prelude + rule); return err })
		})
		if t == nil {
			return o
		}
		o.see("rule added", said(err))
		verdict := "stops"
		for late := time.Now().Add(2 * time.Second); t.say(client) == nil; time.Sleep(pause) {
			if time.Now().After(late) {
				verdict = "goes on"
				break
			}
		}
		o.see("conversation", verdict)
		t.abort()
		return o
	}}
}

// bulk sends that many bytes by datagrams or segments and says how far it comes: rules may count them.
func bulk(size int) scenario {
	return scenario{name: fmt.Sprintf("%d kB", size>>10), run: func(s *stage, tr trial) outcome {
		t, o := s.begin(tr, relearned)
		if t == nil {
			return o
		}
		block := append(bytes.Repeat([]byte{'x'}, 1<<10-1), '\n')
		after := ""
		_ = t.client.conn.SetWriteDeadline(time.Now().Add(2 * wordTimeout))
		for range size >> 10 {
			if _, err := t.client.conn.Write(block); err != nil {
				after = "lost"
				break
			}
			time.Sleep(time.Millisecond) // a segment each
		}
		if after == "" {
			after = t.word(client)
		}
		o.see("word after it", after)
		time.Sleep(1200 * time.Millisecond) // relearnSeconds
		o.see("and a second later", t.word(server))
		t.abort()
		return o
	}}
}
