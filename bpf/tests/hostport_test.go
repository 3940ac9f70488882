// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/policy"
)

const (
	reasonClash = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_NO_CLIENT_PORT)

	clientPort = 40000
	hostPort   = 8080
	podPort    = 80
)

// unspecified is a hostPort's address when it has no hostIP.
func unspecified(family int) netip.Addr {
	return pick(family, netip.IPv4Unspecified(), netip.IPv6Unspecified())
}

// mapping publishes hostPort of every address of the node.
func mapping(family, proto int, p *pod) published {
	return published{host: at(unspecified(family), hostPort), proto: uint8(proto), pod: p, port: podPort, gen: 1}
}

// toHostPort is a client's connection through a hostPort of upl0's address.
func (w *walk) toHostPort(family, proto int, p *pod) *journey {
	c := conn{proto: proto, remote: at(client(family), clientPort)}
	return &journey{
		walk: w, pod: p, up: upl0,
		inside: c.as(at(p.addr(family), podPort)), outside: c.as(at(upl0.addr(family), hostPort)),
	}
}

// hostPortCases runs a walk for both families, TCP and UDP, and every state of a packet.
func hostPortCases(t *testing.T, fx *fixture, f func(w *walk, family, proto int)) {
	t.Helper()
	for _, family := range families {
		for _, p := range protocols[:2] {
			name := fmt.Sprintf("%s%d", p.name, family)
			fx.each(t, name, func(w *walk) { f(w, family, p.proto) }, publishing(mapping(family, p.proto, podA)))
		}
	}
}

// establish opens a connection and leaves it on the fast path.
func (j *journey) establish() {
	j.tb.Helper()
	j.in("S")
	j.out("SA")
	j.inFast("A")
}

func TestPrivilegedHostPort(t *testing.T) {
	fx := newFixture(t, nil)
	const opened = flowDNAT | flowDNATAny | flowRXFirst | flowRXConfirm

	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.in("S")
		f := w.wantFlow(unproven, j.inside, opened)
		if f.Owner != podA.owner || f.HostportGeneration != 1 || f.Other != j.outside.tuple() {
			t.Errorf("record of the opening: %+v", f)
		}
		j.out("SA")
		f = w.wantFlow(unproven, j.inside, opened|flowTXFirst|flowTXConfirm|flowReplied)
		if int(f.OutIfindex) != w.index("upl0") {
			t.Errorf("learned device %d, want %d", f.OutIfindex, w.index("upl0"))
		}
		j.inFast("A")
		const established = opened | flowConfirmed | flowReplied | flowAssured
		w.wantFlow(proven, j.inside, established)
		for range 3 {
			j.outFast("PA")
			j.inFast("PA")
		}
		f = w.wantFlow(proven, j.inside, established)
		if f.RxPackets != 5 || f.TxPackets != 4 {
			t.Errorf("flow counted %d in, %d out, want 5, 4", f.RxPackets, f.TxPackets)
		}
		w.wantFlows(1, 0) // no index: the mapping leads to the record
	})
}

func TestPrivilegedHostPortClose(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		opt := publishing(mapping(family, tcp, podA))
		const live = flowDNAT | flowDNATAny | flowConfirmed | flowReplied | flowAssured
		fx.each(t, fmt.Sprintf("fin%d", family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.establish()
			j.inFast("FA")
			w.wantFlow(proven, j.inside, live|flowFinRX)
			j.outFast("FA")
			old := w.wantFlow(proven, j.inside, live|flowFinRX|flowFinTX)
			j.inFast("Af")
			w.wantNoFlow(j.inside) // it ended with its last packet
			w.later(time.Second)
			reopened(j, old)
		}, opt)
		fx.each(t, fmt.Sprintf("pod first%d", family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.establish()
			j.outFast("FA")
			j.inFast("FA")
			w.wantFlow(proven, j.inside, live|flowFinRX|flowFinTX)
			j.outFast("A")
			w.wantNoFlow(j.inside)
			j.in("FA") // the last answer was lost: the mapping leads the repetition to the pod
			j.out("A")
		}, opt)
		fx.each(t, fmt.Sprintf("rst%d", family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.establish()
			old := w.wantFlow(proven, j.inside, live)
			j.outFast("R")
			w.wantNoFlow(j.inside)
			w.later(time.Second)
			reopened(j, old)
		}, opt)
	}
}

// reopened sends a SYN on the tuple of a closed connection: everything begins anew.
func reopened(j *journey, old bpfgen.TypesSlCtEntry) {
	j.tb.Helper()
	j.in("S")
	f := j.wantFlow(unproven, j.inside, flowDNAT|flowDNATAny|flowRXFirst|flowRXConfirm)
	if f.Created == old.Created || f.RxPackets != 1 || f.TxPackets != 0 || f.OutIfindex != 0 {
		j.tb.Errorf("the new connection has something of the old one: %+v", f)
	}
	j.out("SA")
	j.inFast("A")
	j.outFast("PA")
}

// A repeated SYN belongs to the same connection, and never takes the fast path.
func TestPrivilegedHostPortRetransmissions(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.in("S")
			first, _ := w.lookup(unproven, j.inside)
			j.in("S")
			again, _ := w.lookup(unproven, j.inside)
			if again.RxPackets != 2 || again.Created != first.Created {
				t.Errorf("a repeated SYN is not the same connection: %+v", again)
			}
			j.out("SA")
			j.out("SA")
			j.in("S") // slow, always
			j.inFast("A")
			j.in("S")
			j.inFast("PA")
		}, publishing(mapping(family, tcp, podA)))
	}
}

// A SYN from the end that did not open the connection is another connection.
func TestPrivilegedOpenedByTheOtherEnd(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprintf("pod/%d", family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.establish()
			k := *j
			k.outside = k.inside // no program translates what this pod opens
			k.out("S")
			w.wantFlow(unproven, k.inside, flowPodOpened|flowTXFirst|flowTXConfirm)
		}, publishing(mapping(family, tcp, podA)))
		fx.each(t, fmt.Sprintf("client/%d", family), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.answered()
			j.ignored("S")
			j.inFast("PA")
			k := w.plain(family, tcp, podB, keptPort)
			k.answered()
			k.in("S")
			w.wantFlow(unproven, k.inside, flowRXFirst|flowRXConfirm)
		}, masquerading(podA))
	}
}

// Both ends of a masqueraded connection may open it at once (RFC 9293 3.5, RFC 5382 REQ-2): a SYN from outside while the pod's own
// waits for its answer is the pod's, also where no host may open anything toward it.
func TestPrivilegedSimultaneousOpen(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for name, port := range map[string]uint16{"kept": keptPort, "moved": movedPort} {
			outside := port
			if port == movedPort {
				outside = rolled(9)
			}
			for _, policed := range []bool{false, true} {
				fx.each(t, fmt.Sprintf("%d/%s/%t", family, name, policed), func(w *walk) {
					w.rolls(9)
					if w.came = upl0.name; policed {
						w.police(podA, 7, policy.ModeOpen, onlyTo("egress", tcp, client(family), serverTCP))
					}
					j := w.opens(family, tcp, podA, port, outside)
					j.ignored("S") // no connection waits for it yet
					j.out("S")
					j.in("S")
					j.out("SA")
					j.in("SA")
					j.outFast("A")
					j.inFast("PA")
					j.ignored("S") // of another connection
				}, masquerading(podA))
			}
		}
	}
}

// A mapping with a hostIP comes before one without.
func TestPrivilegedHostPortPrecedence(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		second := pick(family, second4, second6)
		specific := mapping(family, udp, podB)
		specific.host, specific.gen = at(second, hostPort), 2
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.in("")
			j = w.toHostPort(family, udp, podB)
			j.outside = j.outside.as(at(second, hostPort))
			j.in("")
			w.wantFlow(unproven, j.inside, flowDNAT|flowRXFirst|flowRXConfirm)
			j.out("")
			j.inFast("")
			// The other protocol of the same port is not published.
			j = w.toHostPort(family, tcp, podA)
			j.ignored("S")
		}, publishing(mapping(family, udp, podA), specific))
		fx.each(t, fmt.Sprintf("only specific %d", family), func(w *walk) {
			j := w.toHostPort(family, udp, podB)
			j.ignored("") // to the first address
			j.outside = j.outside.as(at(second, hostPort))
			j.in("")
		}, publishing(specific))
	}
}

// Only the node's own addresses answer for a hostPort without hostIP.
func TestPrivilegedHostPortNotHostAddress(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.outside = j.outside.as(at(pick(family, ip("192.0.2.77"), ip("2001:db8:1::77")), hostPort))
		j.ignored("S")
		w.wantFlows(0, 0)
		// Nor another port.
		j.outside = j.outside.as(at(upl0.addr(family), hostPort+1))
		j.ignored("S")
		w.wantFlows(0, 0)
	})
}

// A port published on a loopback address is for the node alone: what comes from
// the wire for it is dropped.
func TestPrivilegedHostPortLoopback(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, p := range protocols[:2] {
			for _, address := range pick(family, []string{"127.0.0.1", "127.255.0.9"}, []string{"::1"}) {
				m := mapping(family, p.proto, podA)
				m.host = at(ip(address), hostPort)
				fx.each(t, p.name+"/"+address, func(w *walk) {
					j := w.toHostPort(family, p.proto, podA)
					f := j.outside.as(m.host).rx("S")
					f.srcMAC, f.dstMAC = upl0.router, upl0.mac
					w.step(uplIngress, upl0.name, f.bytes(t), wantDrop(reasonLoopback, nil))
					w.wantFlows(0, 0)
				}, publishing(m))
			}
		}
	}
}

// A packet that is not for the node's MAC is not for its hostPorts.
func TestPrivilegedHostPortOtherHost(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		for _, dst := range [][]byte{mac(9, 9), {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {1, 0, 0x5e, 0, 0, 1}} {
			f := j.outside.rx("S")
			f.srcMAC, f.dstMAC = upl0.router, dst
			w.step(uplIngress, "upl0", f.bytes(t), untouched(f.bytes(t)))
		}
		w.wantFlows(0, 0)
	})
}

// What the stack forwards is for another node, whether the programs take the address for the node's, or a mapping names it.
func TestPrivilegedHostPortForwardedAddress(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		moved := w.toHostPort(family, proto, podA)
		moved.outside.local = at(far(family), hostPort)
		w.put("sl_node_addrs", codec.Addr(far(family)), uint32(w.index("upl0")))
		moved.ignored("S")
		moved.ignored("PA")
		m := mapping(family, proto, podA)
		m.host = at(far(family), hostPort+1)
		w.publish(m)
		standby := w.toHostPort(family, proto, podA)
		standby.outside.local = m.host
		standby.ignored("S")
		w.wantFlows(0, 0)
		w.toHostPort(family, proto, podA).establish()
	})
}

// A client that never stops sending follows the port to its new pod at once.
func TestPrivilegedHostPortMoves(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		m := mapping(family, udp, podA)
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.establish()
			j.outFast("")
			m.pod, m.gen = podB, 2
			w.publish(m)
			k := w.toHostPort(family, udp, podB)
			k.in("")
			w.wantFlow(unproven, k.inside, flowDNAT|flowDNATAny|flowRXFirst|flowRXConfirm)
			j.outFast("") // the old pod's last words keep the address its client knows
			k.out("")
			k.inFast("")
			k.outFast("")
			w.wantFlow(proven, k.inside, flowDNAT|flowDNATAny|flowConfirmed|flowReplied|flowAssured)
		}, publishing(m))
		fx.each(t, fmt.Sprintf("same pod %d", family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.establish()
			again := mapping(family, udp, podA)
			again.gen = 7
			w.publish(again)
			j.in("") // a new flow of the new generation
			f := w.wantFlow(unproven, j.inside, flowDNAT|flowDNATAny|flowRXFirst|flowRXConfirm)
			if f.HostportGeneration != 7 {
				t.Errorf("generation %d, want 7", f.HostportGeneration)
			}
			j.out("")
			j.inFast("")
		}, publishing(mapping(family, udp, podA)))
		fx.each(t, fmt.Sprintf("unpublished %d", family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.establish()
			m := mapping(family, udp, podA)
			w.remove("sl_hostports", m.key())
			j.ignored("")
		}, publishing(mapping(family, udp, podA)))
	}
}

// A flow that was evicted comes back with the client's next packet.
func TestPrivilegedHostPortEvicted(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.establish()
		w.evict(j.inside)
		j.in("PA")
		j.out("PA")
		j.inFast("PA")
		j.outFast("PA")
	})
}

// The pod speaks first after its flow was evicted. The datapath does not know what the client asked for, so that a masqueraded pod's packet leaves
// as one of a connection of its own: never with the pod's address. The client's next packet brings the flow back as it
// was; its answer to the strange one (a RST) ends a TCP connection at the pod too.
func TestPrivilegedHostPortEvictedPodFirst(t *testing.T) {
	fx := newFixture(t, nil)
	for name, restored := range map[string]bool{"client speaks": true, "client refuses": false} {
		t.Run(name, func(t *testing.T) {
			hostPortCases(t, fx, func(w *walk, family, proto int) {
				w.addEndpoint(podA, epMasquerade)
				j := w.toHostPort(family, proto, podA)
				j.establish()
				w.evict(j.inside)
				stray := *j
				stray.outside = j.outside.as(at(upl0.addr(family), podPort))
				stray.out("PA")
				if !restored {
					stray.in("RA")
					return
				}
				j.in("PA")
				j.out("PA")
				j.inFast("PA")
				j.outFast("PA")
				stray.ignored("RA") // too late: that was another connection
				j.inFast("PA")
			})
		})
	}
}
