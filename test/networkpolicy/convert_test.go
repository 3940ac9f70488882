// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	npav1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
	"github.com/sluice-cni/sluice/pkg/networkpolicy/kube"
)

// convert is the conversion that the product does not have yet.
func convert(p *npav1alpha2.ClusterNetworkPolicy) networkpolicy.Policy {
	out := networkpolicy.Policy{Name: p.Name, Tier: networkpolicy.Admin, Priority: int(p.Spec.Priority), Subject: *convertPods(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods)}
	if p.Spec.Tier == npav1alpha2.BaselineTier {
		out.Tier = networkpolicy.Baseline
	}
	for _, r := range p.Spec.Ingress {
		rule := networkpolicy.Rule{Action: convertAction(r.Action), Ports: convertProtocols(r.Protocols)}
		for _, peer := range r.From {
			rule.Peers = append(rule.Peers, networkpolicy.Peer{Pods: convertPods(peer.Namespaces, peer.Pods)})
		}
		out.Rules[networkpolicy.Ingress] = append(out.Rules[networkpolicy.Ingress], rule)
	}
	for _, r := range p.Spec.Egress {
		rule := networkpolicy.Rule{Action: convertAction(r.Action), Ports: convertProtocols(r.Protocols)}
		for _, peer := range r.To {
			if pods := convertPods(peer.Namespaces, peer.Pods); pods != nil {
				rule.Peers = append(rule.Peers, networkpolicy.Peer{Pods: pods})
			}
			for _, n := range peer.Networks {
				rule.Peers = append(rule.Peers, networkpolicy.Peer{Block: &networkpolicy.Block{CIDR: netip.MustParsePrefix(string(n))}})
			}
		}
		out.Rules[networkpolicy.Egress] = append(out.Rules[networkpolicy.Egress], rule)
	}
	return out
}

func convertAction(a npav1alpha2.ClusterNetworkPolicyRuleAction) networkpolicy.Action {
	switch a {
	case npav1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return networkpolicy.Accept
	case npav1alpha2.ClusterNetworkPolicyRuleActionPass:
		return networkpolicy.Pass
	}
	return networkpolicy.Deny
}

// convertPods returns nil if neither is there.
func convertPods(namespaces *metav1.LabelSelector, pods *npav1alpha2.NamespacedPod) *networkpolicy.PodSelector {
	switch {
	case namespaces != nil:
		return &networkpolicy.PodSelector{Namespaces: mustSelector(namespaces)}
	case pods != nil:
		return &networkpolicy.PodSelector{Namespaces: mustSelector(&pods.NamespaceSelector), Pods: mustSelector(&pods.PodSelector)}
	}
	return nil
}

func convertProtocols(protocols []npav1alpha2.ClusterNetworkPolicyProtocol) []networkpolicy.Port {
	var out []networkpolicy.Port
	for _, p := range protocols {
		switch {
		case p.DestinationNamedPort != "":
			out = append(out, networkpolicy.Port{Name: p.DestinationNamedPort})
		case p.TCP != nil:
			out = append(out, convertPort(networkpolicy.TCP, p.TCP.DestinationPort))
		case p.UDP != nil:
			out = append(out, convertPort(networkpolicy.UDP, p.UDP.DestinationPort))
		case p.SCTP != nil:
			out = append(out, convertPort(networkpolicy.SCTP, p.SCTP.DestinationPort))
		}
	}
	return out
}

func convertPort(proto networkpolicy.Protocol, p *npav1alpha2.Port) networkpolicy.Port {
	switch {
	case p == nil:
		return networkpolicy.Port{Protocol: proto, Last: 65535}
	case p.Range != nil:
		return networkpolicy.Port{Protocol: proto, First: uint16(p.Range.Start), Last: uint16(p.Range.End)}
	}
	return networkpolicy.Port{Protocol: proto, First: uint16(p.Number), Last: uint16(p.Number)}
}

func mustSelector(s *metav1.LabelSelector) networkpolicy.Selector {
	out, err := kube.Selector("selector", s)
	if err != nil {
		panic(err)
	}
	return out
}
