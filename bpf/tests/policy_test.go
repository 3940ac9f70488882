// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
)

const (
	reasonIsolated = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_ISOLATED)
	reasonIngress  = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_INGRESS_RULE)
	reasonEgress   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_EGRESS_RULE)
	reasonGone     = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_POLICY_RACE)
)

// police puts a pod under the policy id. text is the value of the key "rules".
func (w *walk) police(p *pod, id uint16, mode policy.Mode, text string) {
	w.tb.Helper()
	group := uint32(w.index(p.route))
	w.put("sl_dev_policy", uint32(w.index(p.name)), policymap.NewPoliced(p.owner, group, id, w.putPolicy(id, mode, text)))
	w.underPolicy(p, id)
}

func (w *walk) policies() policymap.Map {
	return policymap.New(w.views["sl_policies"], w.views["sl_np_policies"])
}

func (w *walk) putPolicy(id uint16, mode policy.Mode, text string) policymap.Policy {
	w.tb.Helper()
	pol, err := policy.Parse(string(mode), json.RawMessage(text))
	if err != nil {
		w.tb.Fatal(err)
	}
	v, err := policymap.FromPolicy(pol)
	if err != nil {
		w.tb.Fatal(err)
	}
	p := policymap.Policy{Rules: v}
	if err := w.policies().Put(id, p); err != nil {
		w.tb.Fatal(err)
	}
	return p
}

// underPolicy writes the id into the endpoint's entries.
func (w *walk) underPolicy(p *pod, id uint16) {
	w.tb.Helper()
	w.changeEndpoint(p, func(_ int, v *bpfgen.TypesSlEndpoint) { v.Policy = id })
}

// hits is what the rules of a policy decided, by number; the last is the default.
type hits struct{ in, out []uint64 }

func (w *walk) hits(id uint16) (h hits) {
	w.tb.Helper()
	p, err := w.policies().Get(id)
	if err != nil || p.Rules == nil {
		w.tb.Fatalf("policy %d: %v", id, err)
	}
	v := p.Rules
	for _, l := range v.Ingress() {
		h.in = append(h.in, l.Hits)
	}
	for _, l := range v.Egress() {
		h.out = append(h.out, l.Hits)
	}
	return h
}

// single is an address as a rule names it.
func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// protoName is the protocol as a rule names it.
func protoName(proto int) string { return map[int]string{tcp: "tcp", udp: "udp", echo: "icmp"}[proto] }

// onlyTo is a rule set that allows one protocol and port, of one end, in one direction, and denies the rest of both.
func onlyTo(direction string, proto int, end netip.Addr, port uint16) string {
	ports := ""
	if proto != echo {
		ports = fmt.Sprintf(`,"ports":["%d-%d"]`, port, port+1)
	}
	return fmt.Sprintf(`{%q:[{"action":"deny","cidrs":["192.0.2.99"]},{"action":"allow","cidrs":[%q],"protocol":%q%s}],"ingressDefault":"deny","egressDefault":"deny"}`,
		direction, single(end), protoName(proto), ports)
}

// refusedIn brings a packet from the uplink that the last hook denies.
func (j *journey) refusedIn(kind string, reason drops.Reason) {
	j.tb.Helper()
	f := j.inside.rx(kind).routed(j.pod.gwMAC, j.pod.mac)
	j.stepInput(podIngress, j.pod.name, input{data: f.bytes(j.tb), came: j.up.name}, wantDrop(reason, j.pod))
}

// refusedOut is a packet of the pod that its own hook denies.
func (j *journey) refusedOut(kind string, reason drops.Reason) {
	j.tb.Helper()
	f := j.inside.tx(kind)
	f.srcMAC, f.dstMAC = j.pod.mac, j.pod.gwMAC
	want := wantDrop(reason, j.pod)
	j.step(podEgress, j.pod.name, f.bytes(j.tb), want)
}

// refused sends a packet to the other pod that a's hook denies.
func (p *pair) refused(kind string, reason drops.Reason) {
	p.tb.Helper()
	want := wantDrop(reason, p.a)
	p.step(podEgress, p.a.name, p.sent(kind).bytes(p.tb), want)
}

func policyWalk(f func(w *walk, family, proto int)) func(w *walk, family, proto int) {
	return func(w *walk, family, proto int) {
		w.came = upl0.name
		f(w, family, proto)
	}
}

// What a client may open goes on as without a policy, fast path and all, while the pod may open nothing itself.
func TestPrivilegedPolicyIngress(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeOpen, onlyTo("ingress", proto, client(family), podPort))
		j := w.toPod(family, proto)
		j.in("S")
		j.out("SA")
		j.inFast("A")
		for range 2 {
			j.inFast("PA")
			j.outFast("PA")
		}
		if h := w.hits(7); !slices.Equal(h.in, []uint64{0, 1, 0}) {
			w.tb.Errorf("hits %+v, want one decision", h)
		}
		other := w.toPod(family, proto)
		other.inside.remote = at(pick(family, far4, far6), clientPort+1)
		other.refusedIn("S", reasonIngress)
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonEgress)
		if h := w.hits(7); !slices.Equal(h.in, []uint64{0, 1, 1}) || !slices.Equal(h.out, []uint64{1}) {
			w.tb.Errorf("hits %+v, want one denied in each direction", h)
		}
		w.wantFlows(1, 0)
	}))
}

// toPod is a connection that the client opens to podA's own address.
func (w *walk) toPod(family, proto int) *journey {
	j := w.toHostPort(family, proto, podA)
	if proto == echo {
		j.inside = conn{proto: echo, local: at(podA.addr(family), clientPort), remote: at(client(family), clientPort), remoteAsks: true}
	}
	j.outside = j.inside
	return j
}

// What the pod may open is answered, though no host may open anything toward it.
func TestPrivilegedPolicyEgress(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeOpen, onlyTo("egress", proto, client(family), serverTCP))
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.out("S")
		j.in("SA")
		j.outFast("A")
		j.inFast("PA")
		w.wantFlows(2, 0)
		if h := w.hits(7); !slices.Equal(h.out, []uint64{0, 1, 0}) {
			w.tb.Errorf("hits %+v", h)
		}
		other := w.opens(family, proto, podA, keptPort+2, keptPort+2)
		other.inside.remote = at(pick(family, far4, far6), serverTCP)
		other.refusedOut("S", reasonEgress)
		if proto != echo {
			other.inside.remote = at(client(family), serverTCP+7)
			other.refusedOut("S", reasonEgress)
		}
		w.toPod(family, proto).refusedIn("S", reasonIngress)
		w.wantFlows(2, 0)
	}), masquerading(podA))
}

// Through a hostPort the rules see the client and the pod's port.
func TestPrivilegedPolicyHostPort(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		w.came = upl0.name
		w.police(podA, 7, policy.ModeIsolated, onlyTo("ingress", proto, client(family), podPort))
		j := w.toHostPort(family, proto, podA)
		j.in("S")
		j.out("SA")
		j.inFast("A")
		j.inFast("PA")
		j.outFast("PA")
	})
}

// A flow that another policy admitted leaves the fast path and is asked about anew, from either side.
func TestPrivilegedPolicyChange(t *testing.T) {
	fx := newFixture(t, nil)
	const nothing = `{"ingressDefault":"deny","egressDefault":"deny"}`
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		j := w.toPod(family, proto)
		j.in("S")
		j.out("SA")
		j.inFast("A")
		j.inFast("PA")
		w.police(podA, 7, policy.ModeOpen, onlyTo("ingress", proto, client(family), podPort)) // from none to one
		j.in("PA")
		j.inFast("PA")
		j.outFast("PA")
		w.police(podA, 8, policy.ModeOpen, nothing)
		j.refusedOut("PA", reasonIngress) // the client had opened it
		arrived := j.outside.rx("PA")
		arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
		w.step(uplIngress, j.up.name, arrived.bytes(w.tb), passes(arrived.bytes(w.tb)))
		j.refusedIn("PA", reasonIngress)
		w.police(podA, 9, policy.ModeOpen, onlyTo("ingress", proto, client(family), podPort))
		j.outFast("PA") // asked and admitted on its way
		j.inFast("PA")
		w.remove("sl_dev_policy", uint32(w.index(podA.name))) // and without a policy
		w.underPolicy(podA, 0)
		j.outFast("PA")
		j.inFast("PA")
	}))
}

// What processes of the node open is admitted whatever the rules say, and so is what the pod answers.
func TestPrivilegedPolicyHost(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeIsolated, `{"ingressDefault":"deny","egressDefault":"deny"}`)
		j := w.toPod(family, proto)
		j.inside.remote = at(pick(family, ip("10.1.0.1"), ip("fd00:1::1")), j.inside.remote.Port())
		in, out := j.inside.rx("S"), j.inside.tx("SA")
		in.srcMAC, in.dstMAC, out.srcMAC, out.dstMAC = podA.gwMAC, podA.mac, podA.mac, podA.gwMAC
		for range 3 {
			w.step(podIngress, podA.name, in.bytes(w.tb), passes(in.bytes(w.tb)))
			w.step(podEgress, podA.name, out.bytes(w.tb), passes(out.bytes(w.tb)))
			in.flags, out.flags = "A", "PA"
			in.number(j.inside.remoteAsks)
			out.number(!j.inside.remoteAsks)
		}
		w.wantFlows(1, 0) // proven: it lives as long as it is used
		j.inside.local = at(podA.addr(family), j.inside.local.Port()+1)
		if proto != echo {
			j.refusedOut("PA", reasonEgress)
		}
	})
}

// Isolated pods of one bridge, and pods under a mode on different bridges.
func TestPrivilegedPolicyBetween(t *testing.T) {
	const none = ""
	tests := []struct {
		a, b   *pod
		am, bm policy.Mode // empty: no policy
		passes bool
		atA    bool // refused where it is sent
	}{
		{podA, podB, policy.ModeIsolated, policy.ModeIsolated, false, true},
		{podA, podB, policy.ModeIsolated, none, false, true},
		{podA, podB, none, policy.ModeIsolated, false, false},
		{podA, podB, policy.ModeSameBridge, policy.ModeIsolated, false, true},
		{podA, podB, policy.ModeSameBridge, policy.ModeSameBridge, true, false},
		{podA, podB, policy.ModeSameBridge, none, true, false},
		{podA, podC, policy.ModeSameBridge, policy.ModeSameBridge, false, true},
		{podC, podA, policy.ModeIsolated, policy.ModeSameBridge, false, true},
		{podA, podC, policy.ModeIsolated, none, true, false},
		{podA, podC, none, policy.ModeIsolated, true, false},
	}
	fx := newFixture(t, nil)
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s-%s-%s-%s", tt.a.name, tt.b.name, tt.am, tt.bm), func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				if tt.am != none {
					w.police(tt.a, 7, tt.am, "")
				}
				if tt.bm != none {
					w.police(tt.b, 8, tt.bm, "")
				}
				w.came = tt.a.name
				p := w.talk(family, proto, tt.a, tt.b)
				if tt.passes {
					p.came = tt.a.name
					p.slow("S")
					p.came = tt.b.name
					p.back().slow("SA")
					p.fast("A")
					p.back().fast("PA")
					return
				}
				f := p.sent("S")
				want := wantDrop(reasonIsolated, tt.a)
				if !tt.atA {
					want = passes(f.bytes(w.tb))
				}
				b := w.step(podEgress, tt.a.name, f.bytes(w.tb), want)
				if !tt.atA {
					w.step(podIngress, tt.b.name, b, wantDrop(reasonIsolated, tt.b))
				}
			})
		})
	}
}

// An isolated pod is reached from outside, and reaches it; link-local addresses are no way around.
func TestPrivilegedPolicyIsolatedOutside(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		w.police(podA, 7, policy.ModeIsolated, "")
		w.police(podB, 7, policy.ModeIsolated, "")
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.out("S")
		j.in("SA")
		j.outFast("A")
		if family == 4 {
			return
		}
		p := w.talk(6, proto, podA, podB)
		p.local, p.remote = at(ip("fe80::a"), p.local.Port()), at(ip("fe80::b"), p.remote.Port())
		f := p.sent("S")
		w.step(podEgress, podA.name, f.bytes(w.tb), wantDrop(reasonIsolated, podA))
		w.stepInput(podIngress, podB.name, input{data: f.bytes(w.tb), came: podA.name}, wantDrop(reasonIsolated, podB))
	}), masquerading(podA))
}

// Rules bind a pod's link-local addresses too.
func TestPrivilegedPolicyLinkLocal(t *testing.T) {
	fx := newFixture(t, nil)
	fx.each(t, "udp6", func(w *walk) {
		w.police(podA, 7, policy.ModeOpen, `{"egress":[{"action":"allow","cidrs":["fe80::b"],"protocol":"udp"}],"egressDefault":"deny"}`)
		p := w.talk(6, udp, podA, podB)
		p.local, p.remote = at(ip("fe80::a"), p.local.Port()), at(ip("fe80::b"), p.remote.Port())
		f := p.sent("")
		w.step(podEgress, podA.name, f.bytes(w.tb), untouched(f.bytes(w.tb)))
		p.remote = at(ip("fe80::c"), p.remote.Port())
		w.step(podEgress, podA.name, p.sent("").bytes(w.tb), wantDrop(reasonEgress, podA))
	})
}

// The programs inside a pod: the same rules, flows of their own, the node by its addresses.
func TestPrivilegedPolicyInside(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		const number = 300
		key := podns.Key(number)
		pol := w.putPolicy(7, policy.ModeOpen, onlyTo("egress", proto, client(family), serverTCP))
		w.put("sl_dev_policy", key, policymap.NewPoliced(podA.owner, 0, 7, pol))
		w.put("sl_ns_devices", uint32(number), &bpfgen.TypesSlPodnsDevice{Owner: podA.owner})
		defer w.remove("sl_ns_devices", uint32(number))
		w.number = number
		j := w.plain(family, proto, podA, keptPort)
		pass := func(h hook, f frame) {
			w.tb.Helper()
			f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
			w.step(h, podB.name, f.bytes(w.tb), untouched(f.bytes(w.tb)))
		}
		refuse := func(h hook, f frame, reason drops.Reason) {
			w.tb.Helper()
			f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
			w.step(h, podB.name, f.bytes(w.tb), want{verdict: shot, reason: reason})
		}
		pass(ownEgress, j.inside.tx("S"))
		pass(ownIngress, j.inside.rx("SA"))
		w.wantFlows(1, 0)
		other := j.inside
		other.remote = at(pick(family, far4, far6), serverTCP)
		refuse(ownEgress, other.tx("S"), reasonEgress)
		stranger := w.toPod(family, proto).inside
		refuse(ownIngress, stranger.rx("S"), reasonIngress)
		stranger.remote = at(upl0.addr(family), stranger.remote.Port())
		pass(ownIngress, stranger.rx("S"))
		pass(ownEgress, stranger.tx("SA"))
		if family == 4 {
			for _, ends := range mappedEnds {
				refused := want{verdict: shot, reason: reasonMapped}
				for h, f := range map[hook]frame{ownEgress: j.inside.tx("S"), ownIngress: j.inside.rx("SA")} {
					f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
					w.stepInput(h, podB.name, input{data: mappedFrame(t, f, ends), badSums: true}, refused)
				}
			}
		}
		w.number = number + 1 // another pod with the same address knows nothing of it
		w.put("sl_ns_devices", uint32(number+1), &bpfgen.TypesSlPodnsDevice{Owner: podB.owner})
		defer w.remove("sl_ns_devices", uint32(number+1))
		w.put("sl_dev_policy", podns.Key(number+1), policymap.NewPoliced(podB.owner, 0, 7, pol))
		refuse(ownIngress, j.inside.rx("SA"), reasonIngress)
		w.number = 0 // no number: no device
		pass(ownIngress, w.toPod(family, proto).inside.rx("S"))
	})
}
