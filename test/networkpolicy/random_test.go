// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var cases = flag.Int("cases", 3000, "random `cases` for each engine: so many times the policies change and verdicts are compared")

// casesPerCluster is how often the policies of a cluster change before it is another one.
const casesPerCluster = 50

type dice struct{ *rand.Rand }

func newDice(seed int) dice { return dice{rand.New(rand.NewPCG(uint64(seed), 2))} }

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

// labelKeys are the keys of all labels.
var labelKeys = []string{"app", "tier"}

func (d dice) labels() map[string]string {
	labels := map[string]string{}
	for _, k := range labelKeys {
		if d.chance(75) {
			labels[k] = pick(d, "a", "b", "c")
		}
	}
	return labels
}

// selector is any that the API server takes.
func (d dice) selector() metav1.LabelSelector {
	var s metav1.LabelSelector
	for range pick(d, 0, 1, 1, 2) {
		key, values := pick(d, labelKeys...), []string{pick(d, "a", "b", "c"), pick(d, "a", "b", "c")}
		switch d.IntN(6) {
		case 0, 1:
			s.MatchLabels = map[string]string{key: values[0]}
		case 2:
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values})
		case 3:
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values})
		case 4:
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpExists})
		case 5:
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist})
		}
	}
	return s
}

var (
	someNamespaces = []string{"n1", "n2", "n3"}
	somePorts      = []int{80, 81, 85, 443, 8080}
	someProtocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	outsideAddrs   = []string{"10.0.0.99", "10.1.0.99", "192.0.2.1", "fd00::99", "2001:db8::1"}
	// someBlocks are a network and parts of it, which may be exceptions.
	someBlocks = [][]string{
		{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.2/32", "192.0.2.0/24"},
		{"10.0.0.0/8", "10.0.0.0/24", "10.0.0.0/30", "10.1.0.0/16"},
		{"10.0.0.77/24", "10.0.0.1/32", "10.0.0.2/31"},
		{"192.0.2.0/24"},
		{"::/0", "fd00::/16", "fd00::1/128", "2001:db8::/32"},
		{"fd00::/64", "fd00::/126", "fd00::2/128"},
	}
)

func (d dice) randomCluster(tb testing.TB) *cluster {
	c := newCluster(tb)
	for i, ns := range someNamespaces {
		c.setNamespace(ns, d.labels())
		for j := range 2 {
			var ports []corev1.ContainerPort
			for range d.IntN(4) {
				ports = append(ports, corev1.ContainerPort{Name: pick(d, "http", "dns", "web"), ContainerPort: int32(pick(d, somePorts...)), Protocol: pick(d, someProtocols...)})
			}
			n := 2*i + j + 1
			c.addPod(ns, fmt.Sprint("p", j), d.labels(), ports, fmt.Sprintf("10.%d.0.%d", i%2, n), fmt.Sprintf("fd00::%d", n))
		}
	}
	return c
}

func (d dice) peers() []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for range pick(d, 0, 1, 1, 2) {
		var p networkingv1.NetworkPolicyPeer
		if d.chance(35) {
			block := pick(d, someBlocks...)
			p.IPBlock = &networkingv1.IPBlock{CIDR: block[0]}
			for _, e := range block[1:] {
				if d.chance(40) {
					p.IPBlock.Except = append(p.IPBlock.Except, e)
				}
			}
		} else {
			if d.chance(70) {
				p.PodSelector = ptr(d.selector())
			}
			if p.PodSelector == nil || d.chance(50) {
				p.NamespaceSelector = ptr(d.selector())
			}
		}
		out = append(out, p)
	}
	return out
}

func (d dice) ports() []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for range pick(d, 0, 0, 1, 2) {
		var p networkingv1.NetworkPolicyPort
		if d.chance(70) {
			p.Protocol = ptr(pick(d, someProtocols...))
		}
		switch d.IntN(5) {
		case 0:
		case 1:
			p.Port = ptr(intstr.FromString(pick(d, "http", "dns", "web", "none")))
		case 2:
			p.Port = ptr(intstr.FromInt32(int32(pick(d, somePorts...))))
			p.EndPort = ptr(p.Port.IntVal + int32(pick(d, 0, 1, 4, 400)))
		default:
			p.Port = ptr(intstr.FromInt32(int32(pick(d, somePorts...))))
		}
		out = append(out, p)
	}
	return out
}

func (d dice) policy() *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(d, someNamespaces...), Name: pick(d, "a", "b", "c")}}
	np.Spec.PodSelector = d.selector()
	np.Spec.PolicyTypes = pick(d, nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
	for range d.IntN(3) {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: d.peers(), Ports: d.ports()})
	}
	for range d.IntN(3) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: d.peers(), Ports: d.ports()})
	}
	return np
}

// change makes one of the changes of a case.
func (d dice) change(c *cluster) {
	switch keys := slices.Sorted(maps.Keys(c.policies)); {
	case len(keys) > 3 || len(keys) > 0 && d.chance(20):
		c.deletePolicy(pick(d, keys...))
	case d.chance(10):
		c.setPodLabels(pick(d, slices.Sorted(maps.Keys(c.pods))...), d.labels())
	case d.chance(5):
		c.setNamespace(pick(d, someNamespaces...), d.labels())
	default:
		c.setPolicy(d.policy())
	}
}

// sample returns random probes.
func (d dice) sample(c *cluster, n int) []probe {
	keys := slices.Sorted(maps.Keys(c.pods))
	out := make([]probe, n)
	for i := range out {
		p := probe{ingress: d.chance(50), pod: c.pods[pick(d, keys...)], protocol: pick(d, someProtocols...), port: pick(d, append(somePorts, 1, 82, 86, 65535)...)}
		if d.chance(25) {
			p.peerAddr = pick(d, outsideAddrs...)
		} else {
			p.peer = c.pods[pick(d, keys...)]
			p.peerAddr = pick(d, p.peer.Status.PodIPs...).IP
		}
		out[i] = p
	}
	return out
}

// probesPerCase is how many verdicts are compared after each change.
const probesPerCase = 40

// run calls compare, which returns how many probes it compared, after each change of so many cases.
func run(t *testing.T, extra func(dice, *cluster), compare func(*cluster, []probe) int) {
	t.Helper()
	compared := 0
	var c *cluster
	var d dice
	for i := range *cases {
		if i%casesPerCluster == 0 {
			d = newDice(i)
			c = d.randomCluster(t)
		}
		for range 1 + d.IntN(2) {
			d.change(c)
		}
		extra(d, c)
		c.commit()
		compared += compare(c, d.sample(c, probesPerCase))
	}
	t.Logf("%d cases, %d verdicts compared", *cases, compared)
}

func TestRandomAgainstCyclonus(t *testing.T) {
	t.Parallel()
	run(t, func(dice, *cluster) {}, (*cluster).compareWithCyclonus)
}
