// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

const (
	hpSNAT    = uint16(bpfgen.TypesSlHostportFlagSL_HP_SNAT)
	hpMasqAll = uint16(bpfgen.TypesSlHostportFlagSL_HP_MASQ_ALL)
)

// gateway is the node's address in the pod's subnet.
func (p *pod) gateway(family int) netip.Addr {
	return netip.PrefixFrom(p.addr(family), pick(family, p.bits4, p.bits6)).Masked().Addr().Next()
}

// hairpinConn is a connection of a pod to a hostPort of its own node, as each of the three sees it.
type hairpinConn struct {
	*walk
	client, pod *pod
	asked       conn // the client: local is its own end
	middle      conn // the stack: local is the client's end
	seen        conn // the pod: local is the client's end as the pod sees it
}

// toNode is a connection of c to the hostPort of p by an address of the node.
func (w *walk) toNode(family, proto int, c, p *pod, by netip.Addr) *hairpinConn {
	from := at(c.addr(family), keptPort)
	t := &hairpinConn{walk: w, client: c, pod: p, asked: conn{proto: proto, local: from, remote: at(by, hostPort)}}
	t.middle, t.seen = t.asked, t.asked
	t.middle.remote, t.seen.remote = at(p.addr(family), podPort), at(p.addr(family), podPort)
	return t
}

// masked makes the pod see its gateway.
func (t *hairpinConn) masked(port uint16) *hairpinConn {
	family := 4
	if t.seen.local.Addr().Is6() {
		family = 6
	}
	t.seen.local = at(t.pod.gateway(family), port)
	return t
}

// asks brings a packet from the client to the pod; every step is checked whole.
func (t *hairpinConn) asks(kind string) { t.tb.Helper(); t.carry(t.client, t.pod, conn.tx, kind) }

// answers brings one back.
func (t *hairpinConn) answers(kind string) { t.tb.Helper(); t.carry(t.pod, t.client, conn.rx, kind) }

func (t *hairpinConn) carry(from, to *pod, dir func(conn, string) frame, kind string) {
	t.tb.Helper()
	first, last := t.asked, t.seen
	if from == t.pod && dir(t.seen, kind).src == t.seen.remote {
		first, last = t.seen, t.asked
	}
	sent, middle, got := dir(first, kind), dir(t.middle, kind), dir(last, kind)
	for _, f := range []*frame{&sent, &middle, &got} {
		f.srcMAC, f.dstMAC = from.mac, from.gwMAC
	}
	b := t.step(podEgress, from.name, sent.bytes(t.tb), passes(middle.bytes(t.tb)))
	b = route(b, to.gwMAC, to.mac)
	t.step(podIngress, to.name, b, passes(got.routed(to.gwMAC, to.mac).bytes(t.tb)))
}

// publishTo is a mapping with portmap's flags, and endpoints that know their gateway.
func publishTo(family, proto int, p *pod, flags uint16) option {
	return func(w *walk) {
		m := mapping(family, proto, p)
		w.put("sl_hostports", m.key(), &bpfgen.TypesSlHostport{
			Ip: codec.Addr(p.addr(family)), Owner: p.owner, Generation: m.gen, Port: codec.Port(m.port), Flags: flags,
		})
		for _, q := range allPods {
			w.changeEndpoint(q, func(f int, v *bpfgen.TypesSlEndpoint) {
				if f == family {
					v.Gateway = codec.Addr(q.gateway(f))
				}
			})
		}
	}
}

// hairpinCases runs f for TCP and UDP in both families with a hostPort of podA.
func hairpinCases(t *testing.T, fx *fixture, flags uint16, f func(w *walk, family, proto int), opts ...option) {
	t.Helper()
	for _, family := range families {
		for _, p := range protocols[:2] {
			fx.each(t, p.name+pick(family, "4", "6"), func(w *walk) { f(w, family, p.proto) },
				append([]option{publishTo(family, p.proto, podA, flags)}, opts...)...)
		}
	}
}

// A pod gets itself, a sibling and a pod of another network; the first two are seen as the gateway.
func TestPrivilegedHairpin(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, hpSNAT, func(w *walk, family, proto int) {
		turns := []*hairpinConn{
			w.toNode(family, proto, podA, podA, upl0.addr(family)).masked(keptPort),
			w.toNode(family, proto, podC, podA, upl0.addr(family)),
		}
		for range 3 { // no such flow ever takes the fast path
			for _, x := range turns {
				x.asks("S")
				x.answers("SA")
				x.asks("PA")
				x.answers("PA")
			}
		}
		sibling := w.toNode(family, proto, podB, podA, upl0.addr(family))
		// The gateway's port toward the pod is taken by the first.
		w.rolls(1)
		sibling.masked(rolled(1)).asks("S")
		sibling.answers("SA")
		sibling.asks("PA")
	})
}

// Without "snat" everybody is seen as he is.
func TestPrivilegedHairpinWithoutSNAT(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, 0, func(w *walk, family, proto int) {
		for _, c := range []*pod{podB, podC} {
			x := w.toNode(family, proto, c, podA, second(family))
			x.asks("S")
			x.answers("SA")
			x.asks("PA")
		}
	})
}

func second(family int) netip.Addr { return pick(family, second4, second6) }

// With "masqAll" a pod of another network is seen as the gateway too.
func TestPrivilegedHairpinMasqAll(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, hpSNAT|hpMasqAll, func(w *walk, family, proto int) {
		x := w.toNode(family, proto, podC, podA, upl0.addr(family)).masked(keptPort)
		x.asks("S")
		x.answers("SA")
		x.asks("PA")
	})
}

// What the client has with the pod itself from the same port is another connection: it gets another port in the stack.
func TestPrivilegedHairpinClash(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, 0, func(w *walk, family, proto int) {
		direct := w.talk(family, proto, podB, podA)
		direct.slow("S")
		direct.back().slow("SA")
		x := w.toNode(family, proto, podB, podA, upl0.addr(family))
		x.middle.local = at(podB.addr(family), rolled(1))
		x.seen.local = x.middle.local
		w.rolls(1)
		x.asks("S")
		x.answers("SA")
		direct.fast("A")
		x.asks("PA")
		direct.back().fast("PA")
	})
}

// The LRU may take any one entry: what is left makes it anew, with the same ports.
func TestPrivilegedHairpinLostHalves(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, hpSNAT, func(w *walk, family, proto int) {
		x := w.toNode(family, proto, podB, podA, upl0.addr(family)).masked(keptPort)
		x.asks("S")
		x.answers("SA")
		x.asks("PA")
		x.answers("PA")
		record := reversed(tupleOf(x.middle))
		record.Side = 1
		for _, key := range []bpfgen.TypesSlTuple{tupleOf(x.asked), tupleOf(x.middle), reversed(tupleOf(x.seen)), record} {
			w.lose(key)
			x.asks("PA")
			x.answers("PA")
		}
	})
}

func tupleOf(c conn) bpfgen.TypesSlTuple {
	return bpfgen.TypesSlTuple{
		Local: codec.Addr(c.local.Addr()), Remote: codec.Addr(c.remote.Addr()),
		LocalPort: codec.Port(c.local.Port()), RemotePort: codec.Port(c.remote.Port()), Proto: uint8(c.proto),
	}
}

// So does a port of pod-side SNAT that was not the client's own, when the record is lost and the client speaks first.
func TestPrivilegedHairpinLostRecordClientFirst(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_snat_secret": secret})
	hairpinCases(t, fx, hpSNAT, func(w *walk, family, proto int) {
		x := w.toNode(family, proto, podB, podA, upl0.addr(family))
		x.asked.local = at(podB.addr(family), movedPort)
		x.middle.local = x.asked.local
		key := reversed(tupleOf(x.middle))
		key.Side = 1
		x.masked(drawn(key, 1))
		x.asks("S")
		x.answers("SA")
		x.asks("PA")
		for range 2 {
			w.lose(key)
			x.asks("PA")
			x.answers("PA")
		}
	})
}

// reversed is the tuple of the other end.
func reversed(t bpfgen.TypesSlTuple) bpfgen.TypesSlTuple {
	t.Local, t.Remote, t.LocalPort, t.RemotePort = t.Remote, t.Local, t.RemotePort, t.LocalPort
	return t
}

// lose takes an entry out of whichever table has it, as the LRU does.
func (w *walk) lose(key bpfgen.TypesSlTuple) {
	for _, m := range []string{proven, unproven} {
		_ = w.maps[m].Delete(&key)
	}
}

// A port with a new owner takes its clients along.
func TestPrivilegedHairpinMoves(t *testing.T) {
	fx := newFixture(t, nil)
	hairpinCases(t, fx, 0, func(w *walk, family, proto int) {
		x := w.toNode(family, proto, podC, podA, upl0.addr(family))
		x.asks("S")
		x.answers("SA")
		m := mapping(family, proto, podB)
		m.gen++
		w.publish(m)
		x = w.toNode(family, proto, podC, podB, upl0.addr(family))
		x.asks("S")
		x.answers("SA")
	})
}
