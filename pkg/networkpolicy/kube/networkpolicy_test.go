// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

func ptr[T any](v T) *T { return &v }

func object(spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "np"}, Spec: spec}
}

// Bug class 34: the defaults of policyTypes.
func TestPolicyTypes(t *testing.T) {
	ingress, egress := []networkingv1.NetworkPolicyIngressRule{{}}, []networkingv1.NetworkPolicyEgressRule{{}}
	for name, tt := range map[string]struct {
		spec networkingv1.NetworkPolicySpec
		want [2]bool
	}{
		"nothing at all":                     {networkingv1.NetworkPolicySpec{}, [2]bool{true, false}},
		"only ingress rules":                 {networkingv1.NetworkPolicySpec{Ingress: ingress}, [2]bool{true, false}},
		"only egress rules":                  {networkingv1.NetworkPolicySpec{Egress: egress}, [2]bool{true, true}},
		"egress rules that are empty":        {networkingv1.NetworkPolicySpec{Egress: egress[:0]}, [2]bool{true, false}},
		"Ingress with egress rules":          {networkingv1.NetworkPolicySpec{Egress: egress, PolicyTypes: types("Ingress")}, [2]bool{true, false}},
		"Egress without rules":               {networkingv1.NetworkPolicySpec{PolicyTypes: types("Egress")}, [2]bool{false, true}},
		"both":                               {networkingv1.NetworkPolicySpec{PolicyTypes: types("Egress", "Ingress")}, [2]bool{true, true}},
		"a type that is unknown closes both": {networkingv1.NetworkPolicySpec{PolicyTypes: types("Ingress", "Forward")}, [2]bool{true, true}},
	} {
		if got, _ := NetworkPolicy(object(tt.spec)); got.Isolates != tt.want {
			t.Errorf("%s: %v, want %v", name, got.Isolates, tt.want)
		}
	}
}

func types(names ...networkingv1.PolicyType) []networkingv1.PolicyType { return names }

// Bug class 35: empty and absent selectors, and both selectors in one peer.
func TestPeerSelectors(t *testing.T) {
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	web := networkpolicy.Selector{{Key: "app", Operator: networkpolicy.In, Values: []string{"web"}}}
	for name, tt := range map[string]struct {
		peer networkingv1.NetworkPolicyPeer
		want networkpolicy.PodSelector
	}{
		"empty podSelector is the own namespace": {networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}, networkpolicy.PodSelector{Namespace: "shop"}},
		"podSelector is in the own namespace":    {networkingv1.NetworkPolicyPeer{PodSelector: labels}, networkpolicy.PodSelector{Namespace: "shop", Pods: web}},
		"empty namespaceSelector is everywhere":  {networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}, networkpolicy.PodSelector{}},
		"namespaceSelector is all pods there":    {networkingv1.NetworkPolicyPeer{NamespaceSelector: labels}, networkpolicy.PodSelector{Namespaces: web}},
		"both have to match":                     {networkingv1.NetworkPolicyPeer{NamespaceSelector: labels, PodSelector: labels}, networkpolicy.PodSelector{Namespaces: web, Pods: web}},
	} {
		got, err := NetworkPolicy(object(networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{tt.peer}}}}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(&tt.want, got.Rules[networkpolicy.Ingress][0].Peers[0].Pods); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestSelectorOperators(t *testing.T) {
	got, err := Selector("s", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "a", Operator: "In", Values: []string{"1", "2"}}, {Key: "b", Operator: "NotIn", Values: []string{"3"}},
		{Key: "c", Operator: "Exists"}, {Key: "d", Operator: "DoesNotExist"},
	}})
	want := networkpolicy.Selector{
		{Key: "a", Operator: networkpolicy.In, Values: []string{"1", "2"}}, {Key: "b", Operator: networkpolicy.NotIn, Values: []string{"3"}},
		{Key: "c", Operator: networkpolicy.Exists}, {Key: "d", Operator: networkpolicy.DoesNotExist},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
}

// Bug classes 26 to 31: what ports and protocols mean, with their defaults.
func TestPorts(t *testing.T) {
	number, name := ptr(intstr.FromInt32(80)), ptr(intstr.FromString("http"))
	for what, tt := range map[string]struct {
		port networkingv1.NetworkPolicyPort
		want networkpolicy.Port
	}{
		"nothing is all of TCP":  {networkingv1.NetworkPolicyPort{}, networkpolicy.Port{Protocol: networkpolicy.TCP, Last: 65535}},
		"only a protocol":        {networkingv1.NetworkPolicyPort{Protocol: ptr(corev1.ProtocolUDP)}, networkpolicy.Port{Protocol: networkpolicy.UDP, Last: 65535}},
		"only a number":          {networkingv1.NetworkPolicyPort{Port: number}, networkpolicy.Port{Protocol: networkpolicy.TCP, First: 80, Last: 80}},
		"SCTP stays SCTP":        {networkingv1.NetworkPolicyPort{Protocol: ptr(corev1.ProtocolSCTP), Port: number}, networkpolicy.Port{Protocol: networkpolicy.SCTP, First: 80, Last: 80}},
		"a range has both ends":  {networkingv1.NetworkPolicyPort{Port: number, EndPort: ptr(int32(90))}, networkpolicy.Port{Protocol: networkpolicy.TCP, First: 80, Last: 90}},
		"a range of one port":    {networkingv1.NetworkPolicyPort{Port: number, EndPort: ptr(int32(80))}, networkpolicy.Port{Protocol: networkpolicy.TCP, First: 80, Last: 80}},
		"a range to the end":     {networkingv1.NetworkPolicyPort{Port: number, EndPort: ptr(int32(65535))}, networkpolicy.Port{Protocol: networkpolicy.TCP, First: 80, Last: 65535}},
		"a name":                 {networkingv1.NetworkPolicyPort{Port: name}, networkpolicy.Port{Protocol: networkpolicy.TCP, Name: "http"}},
		"a name and a protocol":  {networkingv1.NetworkPolicyPort{Protocol: ptr(corev1.ProtocolUDP), Port: name}, networkpolicy.Port{Protocol: networkpolicy.UDP, Name: "http"}},
		"a number in quotes":     {networkingv1.NetworkPolicyPort{Port: ptr(intstr.FromString("80"))}, networkpolicy.Port{Protocol: networkpolicy.TCP, Name: "80"}},
		"the last of all ports":  {networkingv1.NetworkPolicyPort{Port: ptr(intstr.FromInt32(65535))}, networkpolicy.Port{Protocol: networkpolicy.TCP, First: 65535, Last: 65535}},
		"the first of all ports": {networkingv1.NetworkPolicyPort{Port: ptr(intstr.FromInt32(1))}, networkpolicy.Port{Protocol: networkpolicy.TCP, First: 1, Last: 1}},
	} {
		got, err := NetworkPolicy(object(networkingv1.NetworkPolicySpec{Egress: []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{tt.port}}}}))
		if diff := cmp.Diff([]networkpolicy.Port{tt.want}, got.Rules[networkpolicy.Egress][0].Ports); diff != "" || err != nil {
			t.Errorf("%s: %v: %s", what, err, diff)
		}
	}
}

// Bug class 16: bits beyond the length of a network do not count.
func TestBlocks(t *testing.T) {
	got, err := NetworkPolicy(object(networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.3.7/16", Except: []string{"10.0.9.9/24", "10.0.1.1/32"}}},
		{IPBlock: &networkingv1.IPBlock{CIDR: "2001:db8::1/32"}},
	}}}}))
	want := []networkpolicy.Peer{
		{Block: &networkpolicy.Block{CIDR: netip.MustParsePrefix("10.0.0.0/16"), Except: []netip.Prefix{netip.MustParsePrefix("10.0.9.0/24"), netip.MustParsePrefix("10.0.1.1/32")}}},
		{Block: &networkpolicy.Block{CIDR: netip.MustParsePrefix("2001:db8::/32")}},
	}
	if diff := cmp.Diff(want, got.Rules[networkpolicy.Ingress][0].Peers, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
}

// Bug class 27: what cannot be read is named, and closes.
func TestUnreadable(t *testing.T) {
	all := &metav1.LabelSelector{}
	odd := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like", Values: []string{"b"}}}}
	peer := func(p networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
		return networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{p}}}}
	}
	port := func(p networkingv1.NetworkPolicyPort) networkingv1.NetworkPolicySpec {
		return networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{p}}}}
	}
	block := func(cidr string, except ...string) networkingv1.NetworkPolicySpec {
		return peer(networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}})
	}
	number := ptr(intstr.FromInt32(80))
	for field, spec := range map[string]networkingv1.NetworkPolicySpec{
		"spec.ingress[0].from[0]":                                                peer(networkingv1.NetworkPolicyPeer{}),
		"spec.ingress[0].from[0].ipBlock":                                        peer(networkingv1.NetworkPolicyPeer{PodSelector: all, IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}}),
		"spec.ingress[0].from[0].ipBlock.cidr":                                   block("10.0.0/8"),
		"spec.ingress[0].from[0].ipBlock.except[1]":                              block("10.0.0.0/8", "10.1.0.0/16", "010.2.0.0/16"),
		"spec.ingress[0].from[0].podSelector.matchExpressions[0].operator":       peer(networkingv1.NetworkPolicyPeer{PodSelector: odd}),
		"spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].operator": peer(networkingv1.NetworkPolicyPeer{PodSelector: all, NamespaceSelector: odd}),
		"spec.ingress[0].ports[0].protocol":                                      port(networkingv1.NetworkPolicyPort{Protocol: ptr(corev1.Protocol("ICMP"))}),
		"spec.ingress[0].ports[0].port":                                          port(networkingv1.NetworkPolicyPort{Port: ptr(intstr.FromInt32(65536))}),
		"spec.ingress[0].ports[0].endPort":                                       port(networkingv1.NetworkPolicyPort{Port: number, EndPort: ptr(int32(79))}),
	} {
		got, err := NetworkPolicy(object(spec))
		r := got.Rules[networkpolicy.Ingress][0]
		unsupported := slices.ContainsFunc(r.Peers, func(p networkpolicy.Peer) bool { return p.Unsupported != "" }) ||
			slices.ContainsFunc(r.Ports, func(p networkpolicy.Port) bool { return p.Unsupported != "" })
		var fieldErr *FieldError
		if !errors.As(err, &fieldErr) || fieldErr.Field != field || !unsupported {
			t.Errorf("%s: error %v, unsupported %t", field, err, unsupported)
		}
	}
	for _, p := range []networkingv1.NetworkPolicyPort{
		{EndPort: ptr(int32(90))}, {Port: ptr(intstr.FromString("http")), EndPort: ptr(int32(90))}, {Port: ptr(intstr.FromString(""))}, {Port: ptr(intstr.FromInt32(0))},
		{Port: number, EndPort: ptr(int32(65536))},
	} {
		if got, err := NetworkPolicy(object(port(p))); err == nil || got.Rules[networkpolicy.Ingress][0].Ports[0].Unsupported == "" {
			t.Errorf("%+v: error %v", p, err)
		}
	}
	got, err := NetworkPolicy(object(networkingv1.NetworkPolicySpec{PodSelector: *odd, Ingress: []networkingv1.NetworkPolicyIngressRule{{}}}))
	if err == nil || len(got.Subject.Pods) != 0 || got.Subject.Namespace != "shop" || len(got.Rules[networkpolicy.Ingress]) != 0 || !got.Isolates[networkpolicy.Ingress] {
		t.Errorf("a policy for pods that cannot be told: %+v, error %v", got, err)
	}
}
