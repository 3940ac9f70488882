// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	networkpolicymap "github.com/sluice-cni/sluice/pkg/maps/networkpolicy"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
)

const (
	reasonSource   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_SOURCE)
	reasonLoopback = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_LOOPBACK)

	reasonLoopbackPod = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_LOOPBACK_POD)
	reasonNoGateway   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_NO_GATEWAY)

	reasonMapped = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_V4MAPPED)

	reasonShare   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_CT_SHARE)
	reasonTable   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_CT_TABLE)
	reasonRewrite = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_REWRITE)
)

// dropWalks has a way to produce every reason there is; TestPrivilegedDropReasons
// fails for a reason without one. The last two need a helper that fails: an LRU map
// makes room for every update, and what was parsed can be rewritten.
var dropWalks = map[drops.Reason]func(w *walk, family, proto int){
	reasonIP: func(w *walk, family, proto int) {
		w.step(podEgress, podA.name, w.from(family, proto, client(family), podA.mac).bytes(w.tb), wantDrop(reasonIP, podA))
	},
	reasonMAC: func(w *walk, family, proto int) {
		w.step(podEgress, podA.name, w.from(family, proto, podA.addr(family), podB.mac).bytes(w.tb), wantDrop(reasonMAC, podA))
	},
	reasonCsum: func(w *walk, family, proto int) {
		w.csum = halfMadeAt(ethLen + 12)
		w.step(podEgress, podA.name, w.from(family, proto, podA.addr(family), podA.mac).bytes(w.tb), wantDrop(reasonCsum, podA))
	},
	reasonTunnel: func(w *walk, family, proto int) {
		if proto != udp {
			return
		}
		tunnelling(upl1)(w)
		f := w.from(family, proto, podA.addr(family), podA.mac)
		f.dst = at(upl0.addr(family), tunnelPort)
		w.step(podEgress, podA.name, f.bytes(w.tb), wantDrop(reasonTunnel, podA))
	},
	reasonNoAddr: func(w *walk, family, proto int) {
		w.remove("sl_uplinks", uint32(w.index(upl0.name)))
		w.opens(family, proto, podA, keptPort, keptPort).refused("S", wantDrop(reasonNoAddr, podA))
	},
	reasonPorts: func(w *walk, family, proto int) {
		w.keepPorts(snatMin1, snatMax1)
		w.keepPorts(snatMin2, snatMax2)
		w.opens(family, proto, podA, keptPort, keptPort).refused("S", wantDrop(reasonPorts, podA))
	},
	reasonUnasked: func(w *walk, family, proto int) {
		if proto == udp {
			return // an answer looks like a question
		}
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.inside.remoteAsks = true
		j.refused("SA", wantDrop(reasonUnasked, podA))
	},
	reasonClash: func(w *walk, family, proto int) {
		if proto == echo {
			return
		}
		noPortLeft(w, family, proto)
	},
	reasonTable: func(w *walk, family, proto int) {
		if proto == echo {
			return
		}
		w.fail = failMapUpdate
		f := w.toHostPort(family, proto, podA).outside.rx("S")
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
		w.step(uplIngress, upl0.name, f.bytes(w.tb), wantDrop(reasonTable, podA))
	},
	reasonLoopback: func(w *walk, family, proto int) {
		loopback := at(pick(family, ip("127.0.0.9"), ip("::1")), hostPort)
		f := w.toHostPort(family, proto, podA).outside.as(loopback).rx("S")
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
		w.step(uplIngress, upl0.name, f.bytes(w.tb), wantDrop(reasonLoopback, nil))
	},
	reasonLoopbackPod: func(w *walk, family, proto int) {
		j := w.plain(family, proto, podA, keptPort)
		j.inside.remote = at(pick(family, ip("127.0.0.9"), ip("::1")), j.inside.remote.Port())
		f := j.inside.tx("S")
		f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
		w.step(podEgress, podA.name, f.bytes(w.tb), wantDrop(reasonLoopbackPod, podA))
	},
	reasonNoGateway: func(w *walk, family, proto int) {
		f := w.between(family, proto, podA, podC, keptPort).asked.tx("S")
		f.srcMAC, f.dstMAC = podC.gwMAC, podC.mac
		refused := wantDrop(reasonNoGateway, podC)
		w.step(podIngress, podC.name, f.bytes(w.tb), refused)
	},
	reasonShare: func(w *walk, family, proto int) {
		w.shareRefused(podA, proto, flowPodOpened)
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonShare)
	},
	reasonSource: func(w *walk, family, proto int) {
		if proto == echo {
			return
		}
		m := mapping(family, proto, podA)
		m.sources = []netip.Prefix{netip.PrefixFrom(far(family), pick(family, 24, 48)).Masked()}
		w.publish(m)
		f := w.toHostPort(family, proto, podA).outside.rx("S")
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
		w.step(uplIngress, upl0.name, f.bytes(w.tb), wantDrop(reasonSource, podA))
	},
	reasonFalseND: func(w *walk, family, _ int) {
		if family == 4 {
			w.sendLink(link{data: arp(2, gateway4, podA.addr4)}, reasonFalseND)
			return
		}
		w.sendLink(link{data: discover(w.tb, neighbourAdvert, ip("fe80::a"), ip("ff02::1"), gateway6, 255)}, reasonFalseND)
	},
	reasonMapped: func(w *walk, _, proto int) {
		f := w.toHostPort(4, proto, podA).outside.rx("S")
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
		w.stepInput(uplIngress, upl0.name, input{data: mappedFrame(w.tb, f, mappedEnds[0]), badSums: true}, wantDrop(reasonMapped, nil))
	},
	reasonRewrite: unrewritable,
	reasonDenied:  denied,
	reasonOrphan:  orphan,
	reasonFragment: func(w *walk, family, proto int) {
		b := fragments(w.leaving(family, proto), 2)[1]
		w.step(uplEgress, upl0.name, b, wantDrop(reasonFragment, podA))
	},
	reasonRate: overRate,
	reasonOpaque: func(w *walk, family, proto int) {
		b := icmp(13, 150)(w.leaving(family, proto))
		w.stepInput(uplEgress, upl0.name, input{data: b, badSums: true}, wantDrop(reasonOpaque, podA))
	},
	reasonIsolated: func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeIsolated, "")
		w.talk(family, proto, podA, podB).refused("S", reasonIsolated)
	},
	reasonIngress: func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeOpen, `{"ingressDefault":"deny"}`)
		w.toPod(family, proto).refusedIn("S", reasonIngress)
	},
	reasonEgress: func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeOpen, `{"egressDefault":"deny"}`)
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonEgress)
	},
	reasonNPIngress: func(w *walk, family, proto int) {
		w.network(podA, 7, nil, rest(in, deny), rest(out, accept))
		w.toPod(family, proto).refusedIn("S", reasonNPIngress)
	},
	reasonNPEgress: func(w *walk, family, proto int) {
		w.network(podA, 7, nil, rest(in, accept), rest(out, deny))
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonNPEgress)
	},
	reasonNPPending: func(w *walk, family, proto int) {
		w.underNetwork(podA, 7, policymap.Policy{Network: networkpolicymap.Closed()})
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonNPPending)
	},
	reasonGone: func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeOpen, `{"egressDefault":"deny"}`)
		w.remove("sl_policies", uint32(7))
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonGone)
	},
}

// unrewritable lets every rewrite fail that there is.
func unrewritable(w *walk, family, proto int) {
	j := w.opens(family, proto, podA, movedPort, rolled(1))
	w.rolls(1)
	arrived := func() []byte {
		f := j.outside.rx("PA")
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
		return f.bytes(w.tb)
	}
	sent := func() []byte {
		f := j.inside.tx("PA")
		f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
		return f.bytes(w.tb)
	}
	fails := []uint32{failL4Csum}
	if family == 6 { // only its header is stored by a helper
		fails = append(fails, failStoreBytes)
	}
	for _, fail := range fails {
		w.fail = fail
		j.refused("S", wantDrop(reasonRewrite, podA))
		w.fail = 0
		j.out("S")
		w.fail = fail
		w.step(uplIngress, upl0.name, arrived(), wantDrop(reasonRewrite, podA)) // by the stack
		w.fail = 0
		j.in("SA")
		j.outFast("PA")
		w.fail = fail
		w.step(uplIngress, upl0.name, arrived(), wantDrop(reasonRewrite, podA)) // on the fast path
		want := wantDrop(reasonRewrite, podA)
		w.step(podEgress, podA.name, sent(), want)
		w.fail = 0
		w.empty(proven)
		w.empty(unproven)
	}
	if family != 6 {
		return
	}
	p := w.talk(family, proto, podB, podC)
	p.establish()
	w.fail = failStoreBytes
	want := wantDrop(reasonRewrite, podC)
	w.step(podEgress, podB.name, p.sent("PA").bytes(w.tb), want)
}

func TestPrivilegedDropReasons(t *testing.T) {
	fx := newFixture(t, nil)
	for r := drops.Reason(1); r < drops.Max; r++ {
		t.Run(r.String(), func(t *testing.T) {
			if r.String() == "" || strings.HasPrefix(r.String(), "reason ") {
				t.Errorf("reason %d has no name", uint32(r))
			}
			f := dropWalks[r]
			if f == nil {
				t.Fatal("no walk produces this drop")
			}
			var opts []option
			for _, family := range families {
				opts = append(opts, publishing(mapping(family, tcp, podA), mapping(family, udp, podA)))
			}
			eachProtocol(t, fx, f, append(opts, masquerading(podA))...)
		})
	}
}

// A flow that cannot be recorded is no reason to drop what is not translated.
func TestPrivilegedFullTables(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.fail = failMapUpdate
		j := w.plain(family, proto, podB, keptPort)
		j.out("S")
		j.in("SA")
		k := w.inbound(family, proto, podB)
		k.in("S")
		k.out("SA")
		p := w.talk(family, proto, podB, podC)
		p.slow("S")
		p.back().slow("SA")
		w.wantFlows(0, 0)
		// What must be translated is dropped rather than sent with the pod's address.
		w.opens(family, proto, podA, keptPort, keptPort).refused("S", wantDrop(reasonPorts, podA))
	}, masquerading(podA))
}
