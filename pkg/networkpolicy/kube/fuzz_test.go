// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// FuzzNetworkPolicy takes any object. It is converted and compiled, errors name fields, and nothing that it accepts follows from a part
// that cannot be read: without the object's parts that are unsupported, the verdict is the same.
func FuzzNetworkPolicy(f *testing.F) {
	f.Add([]byte(`{"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"podSelector":{"matchLabels":{"a":"b"}}},
		{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"protocol":"UDP","port":"dns"},{"port":80,"endPort":90}]}]}}`))
	f.Add([]byte(`{"spec":{"egress":[{"to":[{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]}},{}],"ports":[{"port":0}]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var np networkingv1.NetworkPolicy
		if json.Unmarshal(data, &np) != nil {
			return
		}
		np.Namespace, np.Name = "shop", "np"
		p, err := NetworkPolicy(&np)
		var fieldErr *FieldError
		if err != nil && !errors.As(err, &fieldErr) {
			t.Fatalf("error %T: %v", err, err)
		}
		got := verdicts(p)
		for _, dir := range []networkpolicy.Direction{networkpolicy.Ingress, networkpolicy.Egress} {
			var kept []networkpolicy.Rule
			for _, r := range p.Rules[dir] {
				if r, ok := readable(r); ok {
					kept = append(kept, r)
				}
			}
			p.Rules[dir] = kept
		}
		if without := verdicts(p); got != without {
			t.Errorf("verdicts %v, without what cannot be read %v: %v", got, without, err)
		}
	})
}

// readable returns a rule without what is unsupported, false if nothing is left that it is about.
func readable(r networkpolicy.Rule) (networkpolicy.Rule, bool) {
	out := networkpolicy.Rule{Action: r.Action}
	for _, p := range r.Peers {
		if p.Unsupported == "" {
			out.Peers = append(out.Peers, p)
		}
	}
	for _, p := range r.Ports {
		if p.Unsupported == "" {
			out.Ports = append(out.Ports, p)
		}
	}
	return out, (len(r.Peers) == 0 || len(out.Peers) > 0) && (len(r.Ports) == 0 || len(out.Ports) > 0)
}

// verdicts are those of some connections of a pod.
func verdicts(p networkpolicy.Policy) (out [12]networkpolicy.Verdict) {
	e, tables := networkpolicy.New(networkpolicy.Config{Node: "here"}), networkpolicy.NewTables()
	e.UpsertNamespace(networkpolicy.Namespace{Name: "shop", Labels: map[string]string{"a": "b"}})
	dns := []networkpolicy.NamedPort{{Name: "dns", Protocol: networkpolicy.UDP, Number: 53}}
	peers := []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("2001:db8::1")}
	e.UpsertPod(networkpolicy.Pod{UID: "pod", Namespace: "shop", Node: "here", Ports: dns})
	e.UpsertPod(networkpolicy.Pod{UID: "peer", Namespace: "shop", Labels: map[string]string{"a": "b"}, Addrs: peers[:1], Ports: dns})
	e.UpsertPolicy(p)
	for _, c := range e.Commit().Changes {
		tables.Apply(c)
	}
	i := 0
	for _, dir := range []networkpolicy.Direction{networkpolicy.Ingress, networkpolicy.Egress} {
		for _, peer := range peers {
			for _, port := range []uint16{53, 80, 0} {
				out[i] = tables.Lookup("pod", dir, peer, networkpolicy.UDP, port)
				i++
			}
		}
	}
	return out
}
