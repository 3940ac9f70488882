// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/policy"
)

const fastDirect = uint32(bpfgen.TypesSlFastPathSL_FAST_DIRECT)

// With fastPath "immediate" no packet of a hostPort's flow goes by the stack, from the first to the last.
func TestPrivilegedFastPathImmediate(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_fast_path": fastDirect})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.inFast("S")
		j.inFast("S") // sent twice
		j.outFast("SA")
		j.inFast("A")
		for range 3 {
			j.inFast("PA")
			j.outFast("PA")
		}
		if f := j.record(); int(f.OutIfindex) != w.index(upl0.name) {
			t.Errorf("goes out by device %d, want %d", f.OutIfindex, w.index(upl0.name))
		}
		if proto == tcp {
			j.inFast("FA")
			j.outFast("FA")
			j.inFast("Af") // the last: the record goes with it
		}
	})
}

// What others may have a say about is still learned: pods' own connections, clients that are masqueraded, the last
// hop, what does not fit.
func TestPrivilegedFastPathImmediateLearns(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_fast_path": fastDirect})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.opens(family, proto, podA, keptPort, keptPort).answered()
		w.plain(family, proto, podB, keptPort).answered()
	}, masquerading(podA))
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		arrived, translated := j.outside.rx("S"), j.inside.rx("S")
		arrived.srcMAC, arrived.dstMAC = upl0.router, upl0.mac
		translated.srcMAC, translated.dstMAC = upl0.router, upl0.mac
		arrived.ttl, translated.ttl = 1, 1
		w.step(uplIngress, upl0.name, arrived.bytes(t), passes(translated.bytes(t)))
		headers := map[int]int{tcp: 20, udp: 8}[proto] + pick(family, 20, 40)
		j.size = podMTU - headers + 1 // just fits
		j.inFast("PA")
		j.outFast("PA")
		j.size++
		j.in("PA")
		j.out("PA")
	})
	hairpinCases(t, fx, hpSNAT|hpMasqAll, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		arrived, translated := j.outside.rx("S"), j.inside.rx("S")
		arrived.srcMAC, arrived.dstMAC = upl0.router, upl0.mac
		translated.srcMAC, translated.dstMAC = upl0.router, upl0.mac
		for range 2 {
			w.step(uplIngress, upl0.name, arrived.bytes(t), passes(translated.bytes(t)))
		}
	})
}

// A pod under a policy gets the first packet by the slow path, where the policy is asked.
func TestPrivilegedFastPathImmediatePoliced(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_fast_path": fastDirect})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		w.came = upl0.name
		w.police(podA, 7, policy.ModeIsolated, onlyTo("ingress", proto, client(family), podPort))
		j := w.toHostPort(family, proto, podA)
		j.in("S")
		j.outFast("SA") // its verdict is known by now
		j.inFast("A")
	})
}

// The way back is another uplink's: the stack is asked, and the flow goes on by that one.
func TestPrivilegedFastPathImmediateOtherWay(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_fast_path": fastDirect})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		w.rerouted(netip.PrefixFrom(client(family), pick(family, 32, 128)), upl1, family, func() {
			j := w.toHostPort(family, proto, podA)
			j.in("S") // the stack says whether the source can be true
			j.up = upl1
			j.out("SA")
			j.outFast("PA")
			j.up = upl0
			j.inFast("PA")
		})
		w.later(routeHold + time.Millisecond)
	})
}

// What cannot be the source of a packet from the wire is left to the stack, which drops martians and asks rp_filter: addresses of the node,
// its gateways and its pods, multicast and none, and clients behind another uplink.
func TestPrivilegedFastPathImmediateSource(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_fast_path": fastDirect})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		for _, source := range []netip.Addr{
			upl0.addr(family), upl1.addr(family), podA.gateway(family), podA.addr(family), podB.addr(family),
			pick(family, ip("224.0.0.5"), ip("ff02::5")), pick(family, ip("255.255.255.255"), ip("ff0e::1")), pick(family, ip("127.0.0.1"), ip("::1")),
		} {
			j := w.toHostPort(family, proto, podA)
			j.outside.remote = at(source, clientPort)
			j.inside.remote = j.outside.remote
			if source.IsLoopback() {
				f := j.outside.rx("S")
				f.srcMAC, f.dstMAC = upl0.router, upl0.mac
				w.step(uplIngress, upl0.name, f.bytes(t), wantDrop(reasonLoopback, nil))
				continue
			}
			j.in("S")
		}
		w.toHostPort(family, proto, podA).inFast("S")
	})
}
