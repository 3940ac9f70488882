// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// bareStep is a step at an uplink without Ethernet header: the packets begin with the IP header.
func (w *walk) bareStep(h hook, in frame, want want) {
	w.tb.Helper()
	if want.out != nil {
		want.out = want.out[ethLen:]
	}
	w.stepInput(h, upl0.name, input{data: in.bytes(w.tb)[ethLen:], badSums: true}, want) // the model reads Ethernet
}

// both sends a packet of the journey in and one out, by the slow path; no device without a
// header takes part in the fast path.
func (j *journey) both(in, out string) {
	j.tb.Helper()
	j.bareIn(in)
	j.bareOut(out)
}

func (j *journey) bareIn(kind string) {
	j.tb.Helper()
	before, after := j.dress(j.outside.rx(kind)), j.dress(j.inside.rx(kind))
	before.srcMAC, before.dstMAC, after.srcMAC, after.dstMAC = mac(), mac(), mac(), mac()
	j.bareStep(uplIngress, before, passes(after.bytes(j.tb)))
	after.srcMAC, after.dstMAC = j.pod.gwMAC, j.pod.mac
	j.step(podIngress, j.pod.name, after.bytes(j.tb), passes(after.bytes(j.tb)))
}

func (j *journey) bareOut(kind string) {
	j.tb.Helper()
	before, after := j.dress(j.inside.tx(kind)), j.dress(j.outside.tx(kind))
	before.srcMAC, before.dstMAC, after.srcMAC, after.dstMAC = j.pod.mac, j.pod.gwMAC, mac(), mac()
	j.step(podEgress, j.pod.name, before.bytes(j.tb), passes(before.bytes(j.tb)))
	j.bareStep(uplEgress, before, passes(after.bytes(j.tb)))
}

// The programs for uplinks without Ethernet header: hostPorts, masquerade, errors, fragments.
func TestPrivilegedL3Uplink(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_l2_len": 0})
	fx.modes = fx.modes[:1] // a sum over the packet would be made behind the first 14 bytes
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(3)
		j := w.opens(family, proto, podA, movedPort, rolled(3))
		j.bareOut("S")
		j.both("SA", "A")
		for range 3 {
			j.both("PA", "PA")
		}
		plain := w.plain(family, proto, podB, keptPort)
		plain.bareOut("S")
		plain.both("SA", "A")
		if proto == echo {
			return
		}
		k := w.toHostPort(family, proto, podA)
		k.both("S", "SA")
		for range 3 {
			k.both("PA", "PA")
		}
	}, masquerading(podA), publishing(mapping(4, tcp, podA), mapping(4, udp, podA), mapping(6, tcp, podA), mapping(6, udp, podA)))
	for _, family := range families {
		fx.each(t, fmt.Sprintf("denied%d", family), func(w *walk) {
			prefix := netip.PrefixFrom(client(family), pick(family, 24, 64)).Masked()
			key := &bpfgen.TypesSlCidr{PrefixLen: uint32(codec.PrefixLen(prefix)), Ip: codec.Addr(prefix.Addr())}
			w.put("sl_denylist", key, uint64(0))
			defer w.remove("sl_denylist", key)
			j := w.toHostPort(family, tcp, podA)
			in := j.outside.rx("S")
			in.srcMAC, in.dstMAC = mac(), mac()
			w.bareStep(uplIngress, in, wantDrop(drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_DENIED), nil))
			if family == 4 {
				for _, ends := range mappedEnds {
					for _, h := range []hook{uplIngress, uplEgress} {
						w.stepInput(h, upl0.name, input{data: mappedFrame(t, in, ends)[ethLen:], badSums: true}, wantDrop(reasonMapped, nil))
					}
				}
			}
		}, publishing(mapping(family, tcp, podA)))
		fx.each(t, fmt.Sprintf("errors%d", family), func(w *walk) {
			j := w.opens(family, udp, podA, keptPort, keptPort)
			j.bareOut("")
			eachError(family, func(kind icmpKind, keep int) {
				before, after := j.toNode(kind, keep, "")
				w.stepInput(uplIngress, upl0.name, input{data: before.bytes(t)[ethLen:], badSums: true}, passes(after.bytes(t)[ethLen:]))
				before, after = j.fromNode(kind, keep, "", true)
				w.stepInput(uplEgress, upl0.name, input{data: before.bytes(t)[ethLen:], badSums: true}, passes(after.bytes(t)[ethLen:]))
			})
			j.size = 201
			in, out := j.dress(j.outside.rx("")), j.dress(j.inside.rx(""))
			in.srcMAC, in.dstMAC, out.srcMAC, out.dstMAC = mac(), mac(), mac(), mac()
			got := fragments(out.bytes(t), 3)
			for i, b := range fragments(in.bytes(t), 3) {
				w.stepInput(uplIngress, upl0.name, input{data: b[ethLen:], badSums: true}, passes(got[i][ethLen:]))
			}
		}, masquerading(podA))
	}
}
