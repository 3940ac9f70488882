// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	npav1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// differences is everything that the comparisons allow for. Each one is shown to be real, so that it goes when an engine repairs it.
var differences = []struct {
	name string
	why  string // ours is right
	how  string // the comparisons deal with it
	show func(t *testing.T, c *cluster) (theirs, ours bool)
}{
	{
		"cyclonus judges a pod that talks to itself", "the API says that a pod cannot block itself", "only ours is asked",
		func(_ *testing.T, c *cluster) (bool, bool) {
			c.setPolicy(isolate("Ingress"))
			p := c.toPod("pod")
			return c.cyclonusVerdict(c.cyclonusPolicy(), p), c.verdict(p)
		},
	},
	{
		"kube-network-policies judges a pod that talks to itself", "as above", "only ours is asked",
		func(t *testing.T, c *cluster) (bool, bool) {
			c.setPolicy(isolate("Ingress"))
			p := c.toPod("pod")
			return newKNP().mustVerdict(t, c, p, false), c.verdict(p)
		},
	},
	{
		"cyclonus' NotIn does not match where the label is absent", "Kubernetes' selectors match there", "cyclonusPolicy asks in other words",
		func(_ *testing.T, c *cluster) (bool, bool) {
			np := isolate("Ingress")
			np.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "absent", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a"}}}
			c.setPolicy(np)
			p := c.toPod("other")
			return c.cyclonusVerdict(cyclonusPolicy{matcher.BuildNetworkPolicies(false, []*networkingv1.NetworkPolicy{np}), false}, p), c.verdict(p)
		},
	},
	{
		"cyclonus knows one name for a port", "a container may give a port two", "cyclonus is asked for each name",
		func(_ *testing.T, c *cluster) (bool, bool) {
			np := isolate("Ingress")
			np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: ptr(intstr.FromString("second"))}}}}
			c.setPolicy(np)
			p := c.toPod("other")
			policy := c.cyclonusPolicy()
			traffic := &matcher.Traffic{Source: policy.trafficPeer(c, p.peer, p.peerAddr), Destination: policy.trafficPeer(c, p.pod, "10.0.0.1"), ResolvedPort: 80, ResolvedPortName: "first", Protocol: "TCP"}
			return policy.IsIngressOrEgressAllowed(traffic, true).IsAllowed(), c.verdict(p)
		},
	},
	{
		"kube-network-policies skips Baseline where a NetworkPolicy selects the pod for the other direction", "a policy has a say in its policyTypes", "onlyOtherDirection leaves that evaluator out",
		func(t *testing.T, c *cluster) (bool, bool) {
			c.setPolicy(isolate("Egress"))
			base := &npav1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "base"}, Spec: npav1alpha2.ClusterNetworkPolicySpec{
				Tier: npav1alpha2.BaselineTier, Subject: npav1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
				Ingress: []npav1alpha2.ClusterNetworkPolicyIngressRule{{Action: npav1alpha2.ClusterNetworkPolicyRuleActionDeny, From: []npav1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: &metav1.LabelSelector{}}}}},
			}}
			c.engine.UpsertPolicy(convert(base))
			p := c.toPod("other")
			return newKNP(base).mustVerdict(t, c, p, true), c.verdict(p)
		},
	},
	{
		"kube-network-policies admits everything by a list of rules that is there and empty", "it is the same as none, and protobuf has only that", "defaulted makes it nil",
		func(t *testing.T, c *cluster) (bool, bool) {
			np := isolate("Ingress")
			c.setPolicy(np)
			c.policies["n/p"].Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{}
			p := c.toPod("other")
			return newKNP().mustVerdict(t, c, p, false), c.verdict(p)
		},
	},
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, d := range differences {
		t.Run(d.name, func(t *testing.T) {
			c := newCluster(t)
			c.setNamespace("n", nil)
			ports := []corev1.ContainerPort{{Name: "first", ContainerPort: 80, Protocol: "TCP"}, {Name: "second", ContainerPort: 80, Protocol: "TCP"}}
			c.addPod("n", "pod", nil, ports, "10.0.0.1")
			c.addPod("n", "other", nil, ports, "10.0.0.2")
			if theirs, ours := d.show(t, c); theirs == ours {
				t.Errorf("both say %t, so nothing has to be allowed for", ours)
			}
		})
	}
}

func isolate(types ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: types}}
}

// toPod is a connection to n/pod at port 80, after a commit.
func (c *cluster) toPod(from string) probe {
	c.commit()
	peer := c.pods["n/"+from]
	return probe{true, c.pods["n/pod"], peer, peer.Status.PodIP, corev1.ProtocolTCP, 80}
}
