// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

var volumeFlag = flag.Int("volume", 12_000, "connections of each attacker in the tests of shares")

// Sizes of the tables in the tests of shares. An attacker opens several times as many connections.
var shareSizes = map[string]uint32{
	"sl_ct": 8192, "sl_ct_unassured": 2048, "sl_ct_places": assuredPlaces + pendingPlaces, "sl_ep_stats": 64,
}

// The places in each of the two tables. A connection that waits for an answer has one, also if it has a reverse entry.
const assuredPlaces, pendingPlaces = 8192 - 3*128, (2048 - 3*128) / 2

// crowdSize is how many TCP connections of others there are; a tenth of them are UDP flows besides.
const crowdSize = 1000

// newShareFixture has tables that an attacker can fill.
func newShareFixture(t *testing.T, vars map[string]uint32) *fixture {
	t.Helper()
	fx := &fixture{kept: new([]uint32), node: newNode(t)}
	vars["cfg_ct_places"], vars["cfg_ct_pending"] = assuredPlaces, pendingPlaces
	fx.programSet = mustLoad(t, loadOptions{vars: vars, seams: true, sizes: shareSizes})
	fx.cut = fx.cutting(t)
	fx.modes = modes[:1]
	return fx
}

// shareRefused makes the programs believe that p was refused a place.
func (w *walk) shareRefused(p *pod, proto int, flags uint32) {
	w.tb.Helper()
	w.put("sl_ct_shares", shareKey(p, proto, flags), binary.NativeEndian.AppendUint64(make([]byte, 8), w.clock+uint64(time.Second)))
}

// shareKey is the key of sl_ct_shares.
func shareKey(p *pod, proto int, flags uint32) []byte {
	kind := uint64(0)
	if flags&flowPodOpened != 0 {
		kind |= 1
	}
	if proto != tcp {
		kind |= 2
	}
	if flags&heldPending != 0 {
		kind |= 4
	}
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, p.owner), kind)
}

// held is how many places p holds, as the programs count.
func (w *walk) held(p *pod, proto int, flags uint32) int64 {
	w.tb.Helper()
	var v []byte
	if err := w.maps["sl_ct_shares"].Lookup(shareKey(p, proto, flags), &v); err != nil {
		return 0
	}
	return int64(binary.NativeEndian.Uint64(v))
}

// crowded is when so many connections have opened that entries may be missing.
func crowded(w *walk) {
	v := make([]byte, 16, 24)
	w.put("sl_ct_turnover", uint32(0), binary.NativeEndian.AppendUint64(v, w.clock+uint64(time.Hour)))
}

// quick runs a program without checks, a little later than the one before.
func (w *walk) quick(h hook, dev string, f frame) int32 {
	w.tb.Helper()
	w.later(10 * time.Microsecond)
	r, err := w.run(h, dev, input{data: f.bytes(w.tb)})
	if err != nil {
		w.tb.Fatal(err)
	}
	return r.verdict
}

// sends has the pod send a packet and, if it is not dropped or gone, gives it to the uplink. False: it was dropped.
func (j *journey) sends(kind string) bool {
	j.tb.Helper()
	f := j.inside.tx(kind)
	f.srcMAC, f.dstMAC = j.pod.mac, j.pod.gwMAC
	switch j.quick(podEgress, j.pod.name, f) {
	case shot:
		return false
	case redirect:
		return true
	}
	return j.quick(uplEgress, j.up.name, f.routed(j.up.mac, j.up.router)) != shot
}

// gets gives a packet from outside to the uplink, and to the pod's device if it goes by the stack. It returns the first verdict.
func (j *journey) gets(kind string) int32 {
	j.tb.Helper()
	f := j.outside.rx(kind)
	f.srcMAC, f.dstMAC = j.up.router, j.up.mac
	verdict := j.quick(uplIngress, j.up.name, f)
	if verdict == pass {
		j.quick(podIngress, j.pod.name, j.inside.rx(kind).routed(j.pod.gwMAC, j.pod.mac))
	}
	return verdict
}

// recount takes the counters for right.
func (w *walk) recount() {
	w.tb.Helper()
	w.drops = w.readDrops()
	for _, p := range allPods {
		*w.stats[p] = w.readStats(p)
	}
}

// nth is an address of a family that many others differ from.
func nth(family, n int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{198, 18 | byte(n>>16&1), byte(n >> 8), byte(n)})
	}
	a := netip.MustParseAddr("2001:2::").As16()
	binary.BigEndian.PutUint32(a[12:], uint32(n))
	return netip.AddrFrom16(a)
}

// crowd opens the connections of others: podB's own, which are masqueraded, and clients' of a hostPort of podC.
func (w *walk) crowd(family int) []*journey {
	w.tb.Helper()
	var all []*journey
	add := func(j *journey) {
		j.sends("S")
		j.gets("SA")
		j.sends("A")
		j.gets("PA")
		all = append(all, j)
	}
	for i := range crowdSize / 2 {
		add(w.opens(family, tcp, podB, uint16(snatMin2+i), uint16(snatMin2+i)))
		j := w.toHostPort(family, tcp, podC)
		j.inside.remote = at(nth(family, 1<<17-1-i), clientPort)
		j.outside.remote = j.inside.remote
		j.gets("S")
		j.sends("SA")
		j.gets("A")
		j.sends("PA")
		all = append(all, j)
	}
	for i := range crowdSize / 10 {
		add(w.opens(family, udp, podB, uint16(snatMin2+i), uint16(snatMin2+i)))
	}
	return all
}

// lost is how many of the connections are no more in the table, or not on the fast path.
func (w *walk) lost(crowd []*journey) map[int]int {
	w.tb.Helper()
	lost := map[int]int{}
	for _, j := range crowd {
		if _, ok := w.lookup(proven, j.inside); !ok || j.gets("PA") != redirect {
			lost[j.inside.proto]++
		}
	}
	return lost
}

func wantCrowd(w *walk, crowd []*journey) {
	w.tb.Helper()
	if lost := w.lost(crowd); len(lost) > 0 {
		w.tb.Errorf("connections of others that are lost, by protocol: %v, want none of %d", lost, len(crowd))
	}
}

// shareCases runs an attack on a crowd in both families.
func shareCases(t *testing.T, f func(w *walk, family int)) {
	t.Helper()
	fx := newShareFixture(t, map[string]uint32{"cfg_snat_secret": secret})
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			w.zero("sl_ct_places", make([]byte, 56))
			defer w.enter(w.tb)()
			f(w, family)
		}, masquerading(podA, podB), publishing(mapping(family, udp, podA), mapping(family, tcp, podC)))
	}
}

// Spoofed sources "prove" flows to a published UDP port that answers: two datagrams each. They get no place of others.
func TestPrivilegedShareSpoofedUDP(t *testing.T) {
	shareCases(t, func(w *walk, family int) {
		crowd := w.crowd(family)
		wantCrowd(w, crowd)
		for i := range *volumeFlag {
			j := w.toHostPort(family, udp, podA)
			j.inside.remote = at(nth(family, i), uint16(1024+i>>17))
			j.outside.remote = j.inside.remote
			j.gets("")
			j.sends("")
			j.gets("")
		}
		w.tb.Logf("%d spoofed sources; places of the flooded pod %d, of podB's flows %d and %d", *volumeFlag,
			w.held(podA, udp, 0), w.held(podB, tcp, flowPodOpened), w.held(podB, udp, flowPodOpened))
		wantCrowd(w, crowd)
		w.recount()
		// The flooded port still answers, and its pod still opens flows.
		j := w.toHostPort(family, udp, podA)
		j.in("")
		j.out("")
		own := w.opens(family, udp, podA, keptPort, keptPort)
		own.out("")
		own.in("")
		if got := w.readDrops()[reasonShare].Total(); got != 0 {
			t.Errorf("%d packets dropped over the share, want none: the pod opened nothing", got)
		}
	})
}

// greedy opens connections of podA until the volume is reached, to servers that answer. It returns how many openings were dropped.
func (w *walk) greedy(family, proto int) (refused int) {
	w.tb.Helper()
	for i := range *volumeFlag {
		port := uint16(snatMin2 + i%(snatMax2-snatMin2))
		j := w.opens(family, proto, podA, port, port)
		j.inside.remote = at(nth(family, i/(snatMax2-snatMin2)), 443)
		j.outside.remote = j.inside.remote
		if !j.sends("S") {
			refused++
			continue
		}
		j.gets("SA")
		j.sends("A")
		j.gets("PA")
	}
	return refused
}

// One pod opens as many connections as it can. Its share ends where others need theirs; what it opens then is dropped and counted.
func TestPrivilegedShareGreedyPod(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			shareCases(t, func(w *walk, family int) {
				crowd := w.crowd(family)
				if refused := w.greedy(family, p.proto); refused == 0 {
					t.Error("nothing of the pod was refused")
				} else if got := w.readDrops()[reasonShare].Total(); got != uint64(refused) {
					t.Errorf("%d drops counted, want %d", got, refused)
				}
				held := w.held(podA, p.proto, flowPodOpened)
				w.tb.Logf("the greedy pod holds %d of %d places", held, assuredPlaces)
				room := int64(assuredPlaces) / 4
				if p.proto == tcp {
					room = 3*room - 3*crowdSize/2
				} else {
					room -= 2 * crowdSize / 10
				}
				if held < room*3/4 {
					t.Errorf("the greedy pod holds %d places of %d, though nobody else wants them", held, room)
				}
				wantCrowd(w, crowd)
				// Others go on opening: each takes a place of the greedy pod.
				w.recount()
				before := w.counts().Evicted
				for i := range crowdSize / 10 {
					j := w.opens(family, p.proto, podB, uint16(30000+i), uint16(30000+i))
					j.sends("S")
					j.gets("SA")
					if _, ok := w.lookup(proven, j.inside); !ok {
						t.Fatalf("connection %d of another pod gets no place", i)
					}
				}
				wantCrowd(w, crowd)
				if n := w.counts().Evicted - before; n == 0 || n > 2*crowdSize/10 {
					t.Errorf("%d evictions counted for %d connections that need two places each at most", n, crowdSize/10)
				}
			})
		})
	}
}

// Places whose entry has ended, expired or gone are free: turnover alone exhausts nothing.
func TestPrivilegedShareTurnover(t *testing.T) {
	shareCases(t, func(w *walk, family int) {
		for i := range *volumeFlag {
			j := w.opens(family, tcp, podA, uint16(snatMin2+i%20000), uint16(snatMin2+i%20000))
			if !j.sends("S") {
				t.Fatalf("connection %d was refused", i)
			}
			j.gets("SA")
			j.sends("A")
			j.gets("FA")
			j.sends("FA")
			w.later(20 * time.Millisecond) // 10 s later its place is free
		}
		if got, places := w.held(podA, tcp, flowPodOpened), int64(assuredPlaces); got > places {
			t.Errorf("holds %d places of %d", got, places)
		}
	})
}

// A client's UDP flow to a hostPort that was evicted is made again by the next packet of either end, with the same translation.
func TestPrivilegedHostPortUDPRecreated(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, masq := range []uint32{0, epMasquerade} {
			name := fmt.Sprintf("%d/masquerade %t", family, masq != 0)
			opts := []option{func(w *walk) { w.addEndpoint(podA, masq) }, publishing(mapping(family, udp, podA)), crowded}
			fx.each(t, name+"/pod speaks", func(w *walk) {
				j := w.toHostPort(family, udp, podA)
				j.establish()
				w.evict(j.inside)
				j.out("")
				w.wantFlow(unproven, j.inside, flowDNAT|flowDNATAny|flowTXFirst|flowTXConfirm|flowReplied)
				j.in("")
				j.outFast("")
				j.inFast("")
				w.wantFlows(1, 0)
			}, opts...)
			fx.each(t, name+"/client speaks", func(w *walk) {
				j := w.toHostPort(family, udp, podA)
				j.establish()
				w.evict(j.inside)
				j.in("")
				j.out("")
				j.inFast("")
			}, opts...)
		}
	}
}

// What a pod opens from a published port is its own: where no entry can be missing, where the peer may not use the port, where the
// mapping has gone, and toward other pods and the node.
func TestPrivilegedHostPortUDPNotRecreated(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		only := mapping(family, udp, podA)
		only.sources = []netip.Prefix{netip.PrefixFrom(far(family), pick(family, 24, 48)).Masked()}
		moved := mapping(family, udp, podB)
		moved.gen = 2
		for name, prepare := range map[string]func(w *walk){
			"quiet":   func(*walk) {},
			"source":  func(w *walk) { crowded(w); w.publish(only) },
			"moved":   func(w *walk) { crowded(w); w.publish(moved) },
			"removed": func(w *walk) { crowded(w); m := mapping(family, udp, podA); w.remove("sl_hostports", m.key()) },
			"address": func(w *walk) { crowded(w); w.remove("sl_node_addrs", codec.Addr(upl0.addr(family))) },
		} {
			fx.each(t, fmt.Sprintf("%d/%s", family, name), func(w *walk) {
				j := w.toHostPort(family, udp, podA)
				j.establish()
				w.evict(j.inside)
				prepare(w)
				own := *j
				own.outside = j.inside // not masqueraded
				own.out("")
				if f := own.record(); f.Flags&flowPodOpened == 0 || f.Flags&flowDNAT != 0 {
					t.Errorf("flags %#x", f.Flags)
				}
			}, publishing(mapping(family, udp, podA)))
		}
	}
}

// Two mappings of one pod port: the pod's answers follow the entry, and without one the end that clients used first.
func TestPrivilegedHostPortUDPTwoMappings(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		second := mapping(family, udp, podA)
		second.host = at(unspecified(family), hostPort+1)
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.establish()
			k := w.toHostPort(family, udp, podA)
			k.inside.remote = at(client(family), clientPort+1)
			k.outside = k.outside.as(at(upl0.addr(family), hostPort+1))
			k.outside.remote = k.inside.remote
			k.establish()
			k.outFast("")
			j.outFast("")
			w.evict(j.inside)
			j.out("")
			w.evict(k.inside)
			k.in("")
			k.out("")
			k.inFast("")
			// The first mapping goes: the next client's end counts.
			m := mapping(family, udp, podA)
			w.remove("sl_hostports", m.key())
			l := *k
			l.inside.remote, l.outside.remote = at(client(family), clientPort+2), at(client(family), clientPort+2)
			l.establish()
			w.evict(l.inside)
			l.out("")
		}, publishing(mapping(family, udp, podA), second), crowded)
	}
}

// A blind answer to a pod's SYN, with another acknowledgment than the SYN has, proves nothing.
func TestPrivilegedBlindAnswer(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.out("S")
			for _, kind := range []string{"SA", "A", "PA", "FA"} {
				for _, ack := range []uint32{0, seqLocal - 1, seqLocal + 1, 1 << 31} {
					f := j.outside.rx(kind)
					f.ack, f.srcMAC, f.dstMAC = ack, j.up.router, j.up.mac
					j.wire(f)
				}
			}
			f := j.wantFlow(unproven, j.inside, flowPodOpened|flowSNAT|flowTXFirst|flowTXConfirm|flowRXFirst)
			if f.Flags&(flowAssured|flowReplied|flowEnding) != 0 {
				t.Errorf("flags %#x after false answers", f.Flags)
			}
			j.in("SA")
			j.wantFlow(proven, j.inside, flowPodOpened|flowSNAT|flowConfirmed|flowReplied|flowAssured)
		}, masquerading(podA))
	}
}

// A SYN on the tuple of a live entry opens a new connection if the pod accepts it: sequence numbers, ends and counters begin anew. A
// third party's SYN, which the pod questions, changes nothing.
func TestPrivilegedSYNOnLiveEntry(t *testing.T) {
	for name, vars := range map[string]map[string]uint32{"established": nil, "immediate": {"cfg_fast_path": fastDirect}} {
		fx := newFixture(t, vars)
		for _, family := range families {
			fx.each(t, fmt.Sprintf("%s%d", name, family), func(w *walk) {
				j := w.toHostPort(family, tcp, podA)
				j.gets("S")
				j.says("SA", seqLocal-1, seqRemote)
				j.gets("A")
				j.says("PA", seqLocal, seqRemote)
				before := j.record()
				j.wireSYN(1 << 20)
				w.later(time.Second)
				const local = uint32(0x00112233) // an earlier number than the old connection's
				j.says("SA", local-1, 1<<20+1)
				f := j.record()
				if f.Flags&flowEnding != 0 || f.TxAck != 1<<20+1 || f.RxEnd != 1<<20+1 || f.TxEnd != local {
					t.Errorf("after the pod's answer: flags %#x, expects %#x to %#x, sent %#x", f.Flags, f.TxAck, f.RxEnd, f.TxEnd)
				}
				if f.TxPackets != 1 || f.RxPackets > 1 || f.Created <= before.Created {
					t.Errorf("counts %d out, %d in, created %d (before %d)", f.TxPackets, f.RxPackets, f.Created, before.Created)
				}
				j.inject("RA", 0) // of the old connection
				if f := j.record(); f.Flags&flowRST != 0 {
					t.Error("a RST of the old connection ends the new one")
				}
				j.inject("RA", f.TxAck-seqRemote)
				if f := j.record(); f.Flags&flowRST == 0 {
					t.Error("a RST of the new connection does not count")
				}
			}, publishing(mapping(family, tcp, podA)))
			fx.each(t, fmt.Sprintf("%s%d/questioned", name, family), func(w *walk) {
				j := w.toHostPort(family, tcp, podA)
				j.gets("S")
				j.says("SA", seqLocal-1, seqRemote)
				j.gets("A")
				j.says("PA", seqLocal, seqRemote)
				before := j.record()
				j.wireSYN(1 << 20)
				j.says("A", before.TxEnd, seqRemote) // RFC 5961, 4.2
				if f := j.record(); f.TxAck != before.TxAck || f.RxEnd != before.RxEnd || f.TxEnd != before.TxEnd || f.Flags != before.Flags {
					t.Errorf("%+v, want %+v", f, before)
				}
			}, publishing(mapping(family, tcp, podA)))
		}
	}
}

// wireSYN sends a client's SYN with that sequence number.
func (j *journey) wireSYN(seq uint32) {
	j.tb.Helper()
	f := j.outside.rx("S")
	f.seq, f.srcMAC, f.dstMAC = seq, j.up.router, j.up.mac
	j.wire(f)
}

// A pod's SYN with a new number on its own live connection opens another one, which must be proven anew.
func TestPrivilegedPodSYNOnLiveEntry(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.answered()
			f := j.inside.tx("S")
			f.seq, f.srcMAC, f.dstMAC = seqLocal+1<<30, j.pod.mac, j.pod.gwMAC
			j.unchecked(podEgress, j.pod.name, input{data: f.bytes(t)})
			if f := j.wantFlow(unproven, j.inside, flowPodOpened|flowTXFirst); f.TxPackets != 1 {
				t.Errorf("%d packets counted, want 1", f.TxPackets)
			}
		}, masquerading(podA))
	}
}
