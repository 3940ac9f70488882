// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cyclonusVerdict asks cyclonus' matcher. It knows one name for a port, so it is asked for each name that the destination has.
func (c *cluster) cyclonusVerdict(policy cyclonusPolicy, p probe) bool {
	names := p.names()
	if len(names) == 0 {
		names = []string{""}
	}
	target := policy.trafficPeer(c, p.pod, p.pod.Status.PodIP)
	peer := policy.trafficPeer(c, p.peer, p.peerAddr)
	for _, name := range names {
		t := &matcher.Traffic{Source: target, Destination: peer, ResolvedPort: p.port, ResolvedPortName: name, Protocol: p.protocol}
		if p.ingress {
			t.Source, t.Destination = peer, target
		}
		if policy.IsIngressOrEgressAllowed(t, p.ingress).IsAllowed() {
			return true
		}
	}
	return false
}

// cyclonusPolicy is the policies of a cluster as cyclonus gets them.
type cyclonusPolicy struct {
	*matcher.Policy
	filled bool
}

// cyclonusPolicy compiles the policies for cyclonus, without its simplifier, which is wrong about ranges (its own TODO).
//
// Its NotIn does not match where the label is absent. Kubernetes' does. So if a policy has NotIn, cyclonus gets the same question in
// other words: all labels are there, an absent one has the value "-", and Exists and DoesNotExist ask for that value.
func (c *cluster) cyclonusPolicy() cyclonusPolicy {
	policies := make([]*networkingv1.NetworkPolicy, 0, len(c.policies))
	filled := false
	for _, p := range c.policies {
		p = p.DeepCopy()
		policies = append(policies, p)
		for _, s := range selectors(p) {
			filled = filled || slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Operator == metav1.LabelSelectorOpNotIn })
		}
	}
	for _, p := range policies {
		for _, s := range selectors(p) {
			for i, r := range s.MatchExpressions {
				switch {
				case filled && r.Operator == metav1.LabelSelectorOpExists:
					s.MatchExpressions[i] = metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"-"}}
				case filled && r.Operator == metav1.LabelSelectorOpDoesNotExist:
					s.MatchExpressions[i] = metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOpIn, Values: []string{"-"}}
				}
			}
		}
	}
	return cyclonusPolicy{matcher.BuildNetworkPolicies(false, policies), filled}
}

// selectors returns all selectors of a policy.
func selectors(p *networkingv1.NetworkPolicy) []*metav1.LabelSelector {
	out := []*metav1.LabelSelector{&p.Spec.PodSelector}
	add := func(peers []networkingv1.NetworkPolicyPeer) {
		for _, peer := range peers {
			out = append(out, peer.PodSelector, peer.NamespaceSelector)
		}
	}
	for _, r := range p.Spec.Ingress {
		add(r.From)
	}
	for _, r := range p.Spec.Egress {
		add(r.To)
	}
	return slices.DeleteFunc(out, func(s *metav1.LabelSelector) bool { return s == nil })
}

func (cp cyclonusPolicy) trafficPeer(c *cluster, p *corev1.Pod, addr string) *matcher.TrafficPeer {
	if p == nil {
		return &matcher.TrafficPeer{IP: addr}
	}
	return &matcher.TrafficPeer{IP: addr, Internal: &matcher.InternalPeer{
		PodLabels: cp.labels(p.Labels), Namespace: p.Namespace, NamespaceLabels: cp.labels(c.namespaces[p.Namespace].Labels),
	}}
}

func (cp cyclonusPolicy) labels(l map[string]string) map[string]string {
	if !cp.filled {
		return l
	}
	all := map[string]string{}
	for _, k := range labelKeys {
		all[k] = "-"
	}
	maps.Copy(all, l)
	return all
}

// compareWithCyclonus returns how many probes were compared.
func (c *cluster) compareWithCyclonus(probes []probe) int {
	policy := c.cyclonusPolicy()
	compared := 0
	for _, p := range probes {
		got, want := c.verdict(p), c.cyclonusVerdict(policy, p)
		if p.self() {
			if !got {
				c.tb.Fatalf("%v is denied\n%s", p, c.dump())
			}
			continue
		}
		compared++
		if got != want {
			c.tb.Fatalf("%v: %t, cyclonus says %t\n%s", p, got, want, c.dump())
		}
	}
	return compared
}

// newCyclonusCluster is the cluster that cyclonus' cases are written for.
func newCyclonusCluster(tb testing.TB) *cluster {
	c := newCluster(tb)
	for i, ns := range []string{"x", "y", "z"} {
		c.setNamespace(ns, map[string]string{"ns": ns})
		for j, name := range []string{"a", "b", "c"} {
			c.addCyclonusPod(ns, name, map[string]string{"pod": name}, fmt.Sprintf("192.168.%d.%d", i+1, j+1))
		}
	}
	return c
}

func (c *cluster) addCyclonusPod(namespace, name string, labels map[string]string, addr string) {
	var ports []corev1.ContainerPort
	for _, port := range []int32{80, 81} {
		for proto, suffix := range map[corev1.Protocol]string{corev1.ProtocolTCP: "tcp", corev1.ProtocolUDP: "udp", corev1.ProtocolSCTP: "sctp"} {
			ports = append(ports, corev1.ContainerPort{Name: fmt.Sprintf("serve-%d-%s", port, suffix), ContainerPort: port, Protocol: proto})
		}
	}
	c.addPod(namespace, name, labels, ports, addr)
}

// act carries out one action of a case.
func (c *cluster) act(a *generator.Action) {
	switch {
	case a.CreatePolicy != nil:
		c.setPolicy(a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		c.setPolicy(a.UpdatePolicy.Policy)
	case a.DeletePolicy != nil:
		c.deletePolicy(a.DeletePolicy.Namespace + "/" + a.DeletePolicy.Name)
	case a.CreateNamespace != nil:
		c.setNamespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels)
	case a.SetNamespaceLabels != nil:
		c.setNamespace(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.DeleteNamespace != nil:
		c.deleteNamespace(a.DeleteNamespace.Namespace)
	case a.ReadNetworkPolicies != nil: // of a real cluster
	case a.CreatePod != nil:
		c.addCyclonusPod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels, fmt.Sprintf("192.168.9.%d", c.made))
	case a.SetPodLabels != nil:
		c.setPodLabels(a.SetPodLabels.Namespace+"/"+a.SetPodLabels.Pod, a.SetPodLabels.Labels)
	case a.DeletePod != nil:
		c.deletePod(a.DeletePod.Namespace + "/" + a.DeletePod.Pod)
	default:
		c.tb.Fatalf("unknown action %+v", a)
	}
}

// All cases that cyclonus runs in a cluster, step by step.
func TestCyclonusCases(t *testing.T) {
	t.Parallel()
	cases := generator.NewTestCaseGenerator(true, "192.168.3.3", []string{"x", "y", "z"}, nil, nil).GenerateAllTestCases()
	if len(cases) != 230 {
		t.Errorf("%d cases, want 230", len(cases))
	}
	compared := 0
	for i, tc := range cases {
		c := newCyclonusCluster(t)
		for j, step := range tc.Steps {
			for _, a := range step.Actions {
				c.act(a)
			}
			c.commit()
			t.Logf("case %d, step %d: %s", i, j, tc.Description)
			compared += c.compareWithCyclonus(c.probes([]string{"8.8.8.8", "192.168.242.7"}, []int{79, 80, 81, 82}, []corev1.Protocol{"TCP", "UDP", "SCTP"}))
		}
	}
	t.Logf("%d cases, %d verdicts compared", len(cases), compared)
}
