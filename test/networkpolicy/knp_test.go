// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	knp "sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	knpcluster "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha2"
	npav1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	npafake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"
	npainformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"
)

// knpEngine is the evaluators of kube-network-policies over stores that a test fills. All but the NetworkPolicies of a cluster is given.
type knpEngine struct {
	policies, clusterPolicies   cache.Store
	admin, namespaced, baseline api.PolicyEvaluator
}

func newKNP(cluster ...*npav1alpha2.ClusterNetworkPolicy) *knpEngine {
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	np := f.Networking().V1().NetworkPolicies()
	cnp := npainformers.NewSharedInformerFactory(npafake.NewSimpleClientset(), 0).Policy().V1alpha2().ClusterNetworkPolicies()
	k := &knpEngine{
		policies: np.Informer().GetStore(), clusterPolicies: cnp.Informer().GetStore(),
		admin:      knpcluster.NewClusterNetworkPolicy(npav1alpha2.AdminTier, cnp, nil, nil),
		namespaced: knp.NewStandardNetworkPolicy(nodeName, f.Core().V1().Namespaces(), f.Core().V1().Pods(), np),
		baseline:   knpcluster.NewClusterNetworkPolicy(npav1alpha2.BaselineTier, cnp, nil, nil),
	}
	k.setClusterPolicies(cluster)
	return k
}

func (k *knpEngine) setClusterPolicies(policies []*npav1alpha2.ClusterNetworkPolicy) {
	var list []any
	for _, p := range policies {
		list = append(list, p)
	}
	_ = k.clusterPolicies.Replace(list, "") // fails only without a name
}

func (k *knpEngine) setPolicies(c *cluster) {
	var list []any
	for _, p := range c.policies {
		list = append(list, p)
	}
	_ = k.policies.Replace(list, "")
}

func (k *knpEngine) mustVerdict(t *testing.T, c *cluster, p probe, raw bool) bool {
	t.Helper()
	k.setPolicies(c)
	admits, err := k.verdict(c, p, raw)
	if err != nil {
		t.Fatal(err)
	}
	return admits
}

// verdict asks the tiers one after the other, as that project's engine does. raw asks the tier of NetworkPolicies in any case.
func (k *knpEngine) verdict(c *cluster, p probe, raw bool) (bool, error) {
	packet := &network.Packet{SrcIP: net.ParseIP(p.pod.Status.PodIP), DstIP: net.ParseIP(p.peerAddr), SrcPort: 40000, DstPort: p.port, Proto: p.protocol}
	src, dst := c.podInfo(p.pod), c.podInfo(p.peer)
	if p.ingress {
		packet.SrcIP, packet.DstIP = packet.DstIP, packet.SrcIP
		src, dst = dst, src
	}
	for _, e := range []api.PolicyEvaluator{k.admin, k.namespaced, k.baseline} {
		if e == k.namespaced && !raw && c.onlyOtherDirection(p) {
			continue
		}
		evaluate := e.EvaluateEgress
		if p.ingress {
			evaluate = e.EvaluateIngress
		}
		v, err := evaluate(context.Background(), packet, src, dst)
		if err != nil || v != api.VerdictNext {
			return v == api.VerdictAccept, err
		}
	}
	return true, nil
}

// onlyOtherDirection reports whether no NetworkPolicy of the probe's direction selects the pod. kube-network-policies then accepts,
// and never asks the Baseline tier, if a policy for the other direction selects it. So its evaluator is left out in that case: the API
// says that a policy is about the directions of its policyTypes.
func (c *cluster) onlyOtherDirection(p probe) bool {
	direction := networkingv1.PolicyTypeEgress
	if p.ingress {
		direction = networkingv1.PolicyTypeIngress
	}
	for _, np := range c.policies {
		if np.Namespace == p.pod.Namespace && knp.MatchesSelector(&np.Spec.PodSelector, p.pod.Labels) && slices.Contains(np.Spec.PolicyTypes, direction) {
			return false
		}
	}
	return true
}

func (c *cluster) podInfo(p *corev1.Pod) *api.PodInfo {
	if p == nil {
		return nil
	}
	return api.NewPodInfo(p, c.namespaces[p.Namespace].Labels, nil, "")
}

// clusterPolicies are those of the tiers Admin and Baseline.
type clusterPolicies map[string]*npav1alpha2.ClusterNetworkPolicy

func (d dice) changeClusterPolicies(c *cluster, policies clusterPolicies) {
	name := pick(d, "a", "b", "c", "d")
	if old := policies[name]; old != nil {
		delete(policies, name)
		if d.chance(40) {
			c.engine.DeletePolicy("", name)
			return
		}
	}
	policies[name] = d.clusterPolicy(name)
	c.engine.UpsertPolicy(convert(policies[name]))
}

func (d dice) clusterPolicy(name string) *npav1alpha2.ClusterNetworkPolicy {
	p := &npav1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Tier = pick(d, npav1alpha2.AdminTier, npav1alpha2.BaselineTier)
	p.Spec.Priority = int32(d.IntN(3))
	p.Spec.Subject.Namespaces, p.Spec.Subject.Pods = d.namespacesOrPods()
	action := func() npav1alpha2.ClusterNetworkPolicyRuleAction {
		return pick(d, npav1alpha2.ClusterNetworkPolicyRuleActionAccept, npav1alpha2.ClusterNetworkPolicyRuleActionDeny, npav1alpha2.ClusterNetworkPolicyRuleActionPass)
	}
	for range d.IntN(4) {
		r := npav1alpha2.ClusterNetworkPolicyIngressRule{Action: action(), Protocols: d.clusterProtocols()}
		for range 1 + d.IntN(2) {
			var peer npav1alpha2.ClusterNetworkPolicyIngressPeer
			peer.Namespaces, peer.Pods = d.namespacesOrPods()
			r.From = append(r.From, peer)
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range d.IntN(4) {
		r := npav1alpha2.ClusterNetworkPolicyEgressRule{Action: action(), Protocols: d.clusterProtocols()}
		for range 1 + d.IntN(2) {
			var peer npav1alpha2.ClusterNetworkPolicyEgressPeer
			if d.chance(30) {
				for _, n := range pick(d, someBlocks...) {
					if d.chance(40) && n != "10.0.0.77/24" { // the API refuses bits beyond the length
						peer.Networks = append(peer.Networks, npav1alpha2.CIDR(n))
					}
				}
			}
			if len(peer.Networks) == 0 {
				peer.Namespaces, peer.Pods = d.namespacesOrPods()
			}
			r.To = append(r.To, peer)
		}
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

func (d dice) namespacesOrPods() (*metav1.LabelSelector, *npav1alpha2.NamespacedPod) {
	if d.chance(40) {
		return ptr(d.selector()), nil
	}
	return nil, &npav1alpha2.NamespacedPod{NamespaceSelector: d.selector(), PodSelector: d.selector()}
}

func (d dice) clusterProtocols() []npav1alpha2.ClusterNetworkPolicyProtocol {
	var out []npav1alpha2.ClusterNetworkPolicyProtocol
	for range pick(d, 0, 0, 1, 2) {
		var p npav1alpha2.ClusterNetworkPolicyProtocol
		port := pick(d, nil, &npav1alpha2.Port{Number: int32(pick(d, somePorts...))}, &npav1alpha2.Port{Range: &npav1alpha2.PortRange{Start: 80, End: int32(pick(d, 81, 443))}})
		switch d.IntN(4) {
		case 0:
			p.TCP = &npav1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		case 1:
			p.UDP = &npav1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 2:
			p.SCTP = &npav1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		case 3:
			p.DestinationNamedPort = pick(d, "http", "dns", "web", "none")
		}
		out = append(out, p)
	}
	return out
}

// kube-network-policies' engine on random NetworkPolicies and ClusterNetworkPolicies.
func TestRandomAgainstKNP(t *testing.T) {
	t.Parallel()
	k := newKNP()
	var of *cluster
	var policies clusterPolicies
	run(t, func(d dice, c *cluster) {
		if of != c {
			of, policies = c, clusterPolicies{}
		}
		if d.chance(60) {
			d.changeClusterPolicies(c, policies)
		}
	}, func(c *cluster, probes []probe) int {
		var list []*npav1alpha2.ClusterNetworkPolicy
		for _, p := range policies {
			list = append(list, p)
		}
		k.setClusterPolicies(list)
		k.setPolicies(c)
		compared := 0
		for _, p := range probes {
			got := c.verdict(p)
			want, err := k.verdict(c, p, false)
			if p.self() {
				want = true
			} else {
				compared++
			}
			if got != want || err != nil {
				t.Fatalf("%v: %t, kube-network-policies says %t, %v\n%s%s", p, got, want, err, c.dump(), dumpCluster(list))
			}
		}
		return compared
	})
}

func dumpCluster(list []*npav1alpha2.ClusterNetworkPolicy) (out string) {
	for _, p := range list {
		out += fmt.Sprintf("cluster policy %+v\n", convert(p))
	}
	return out
}
