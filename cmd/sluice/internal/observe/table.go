// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

// key has the ends of a connection. The table has one for each of the node's connections, so both types are small.
type key struct {
	pod, remote         [16]byte
	podPort, remotePort uint16
	proto               uint8
	four                bool
}

// conn is what the last walk found.
type conn struct {
	created            time.Duration
	owner              uint64
	rxPackets, rxBytes uint64
	txPackets, txBytes uint64
	outside            [16]byte
	outsidePort        uint16
	state, kind        uint8
	opened, fast       bool
	translated, ended  bool
	walk               uint32 // the last one that found it
}

// table is what the walks have found so far. The connections of the kernel's table bound it.
type table struct {
	conns map[key]conn
	walk  uint32 // number of the walk
}

// change is what a walk found about a connection.
type change struct {
	events []string
	end    string // with flowevent.Ended
	id     uint64
}

// states and kinds are kept by their number here.
var (
	states = []string{"unreplied", "new", "established", "closing", "closed", conntrack.StateExpired}
	kinds  = []string{"plain", "masquerade", "hostport", "netfilter"}
)

// gone is how many walks must miss a connection before it is gone: one that moves from table to table during a walk is not found.
const gone = 2

func keyOf(f *loader.Flow) key {
	return key{
		pod: f.Pod.Addr().As16(), remote: f.Remote.Addr().As16(), podPort: f.Pod.Port(), remotePort: f.Remote.Port(), proto: f.Proto, four: f.Pod.Addr().Is4(),
	}
}

// see notes a connection. old is a former one of the same ends, which has ended unseen.
func (t *table) see(f *loader.Flow) (old *loader.Flow, c change) {
	k := keyOf(f)
	c.id = maphash.Comparable(seed, k)
	was, known := t.conns[k]
	now := connOf(f)
	now.walk = t.walk
	if known && was.created > now.created { // the entry's former place, during its move
		return nil, c
	}
	if known && was.created != now.created {
		if !was.ended {
			old = was.flow(k)
		}
		known = false
	}
	over := conntrack.IsOver(f.State)
	now.ended = over
	switch {
	case !known:
		c.events = append(c.events, flowevent.New)
		if over {
			c.events = append(c.events, flowevent.Ended)
		}
	case over && !was.ended:
		c.events = append(c.events, flowevent.Ended)
	case over, was.ended:
		now.ended = true
	case was.fast != now.fast || was.state != now.state:
		c.events = append(c.events, flowevent.Changed)
	}
	c.end = end(f)
	t.conns[k] = now
	return old, c
}

// end says how a connection ended that is closed or has expired.
func end(f *loader.Flow) string {
	has := func(flag string) bool { return slices.Contains(f.Flags, flag) }
	switch {
	case has("rst"):
		return flowevent.EndRST
	case has("fin-tx") && has("fin-rx"):
		return flowevent.EndFIN
	}
	return flowevent.EndExpired
}

// finish calls f for connections that are gone and had not ended before.
func (t *table) finish(f func(*loader.Flow, uint64)) {
	for k, c := range t.conns {
		missed := t.walk - c.walk
		if missed == 0 || missed < gone && !c.ended {
			continue
		}
		delete(t.conns, k)
		if !c.ended {
			f(c.flow(k), maphash.Comparable(seed, k))
		}
	}
}

func connOf(f *loader.Flow) conn {
	c := conn{
		created: f.Created, owner: f.Owner, rxPackets: f.RxPackets, rxBytes: f.RxBytes, txPackets: f.TxPackets, txBytes: f.TxBytes,
		state: number(states, f.State), kind: number(kinds, f.Kind), opened: f.PodOpened, fast: f.Fast,
	}
	if f.Outside.IsValid() {
		c.translated, c.outside, c.outsidePort = true, f.Outside.Addr().As16(), f.Outside.Port()
	}
	return c
}

// flow is what the last walk that found it said.
func (c conn) flow(k key) *loader.Flow {
	at := func(a [16]byte, port uint16) netip.AddrPort {
		ip := netip.AddrFrom16(a)
		if k.four {
			ip = ip.Unmap()
		}
		return netip.AddrPortFrom(ip, port)
	}
	f := &loader.Flow{
		Proto: k.proto, Pod: at(k.pod, k.podPort), Remote: at(k.remote, k.remotePort), State: name(states, c.state), Kind: name(kinds, c.kind),
		PodOpened: c.opened, Fast: c.fast, Owner: c.owner, RxPackets: c.rxPackets, RxBytes: c.rxBytes, TxPackets: c.txPackets, TxBytes: c.txBytes,
	}
	if c.translated {
		f.Outside = at(c.outside, c.outsidePort)
	}
	return f
}

// number is that of a word; one more than there are for another.
func number(words []string, word string) uint8 {
	if i := slices.Index(words, word); i >= 0 {
		return uint8(i)
	}
	return uint8(len(words))
}

func name(words []string, n uint8) string {
	if int(n) < len(words) {
		return words[n]
	}
	return ""
}
