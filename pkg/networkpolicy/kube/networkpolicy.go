// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// FieldError names what cannot be used in an object.
type FieldError struct {
	Field string // as a path: "spec.ingress[0].ports[1].endPort"
	Value string
	Why   string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Why) }

// converter collects errors.
type converter struct{ errs []error }

// fail notes an error, and returns its text for a part that is left out.
func (c *converter) fail(field, value, why string) string {
	err := &FieldError{field, value, why}
	c.errs = append(c.errs, err)
	return err.Error()
}

// NetworkPolicy converts an object. The policy can be used even if there are errors, which are of type *FieldError and joined: what
// cannot be read accepts nothing. If the pods that the object is about cannot be told, it is about all of its namespace.
func NetworkPolicy(np *networkingv1.NetworkPolicy) (networkpolicy.Policy, error) {
	var c converter
	p := networkpolicy.Policy{Namespace: np.Namespace, Name: np.Name, Tier: networkpolicy.NetworkPolicies}
	p.Isolates = c.policyTypes(np)
	for i, r := range np.Spec.Ingress {
		field := fmt.Sprintf("spec.ingress[%d]", i)
		p.Rules[networkpolicy.Ingress] = append(p.Rules[networkpolicy.Ingress], c.rule(np.Namespace, field, "from", r.From, r.Ports))
	}
	for i, r := range np.Spec.Egress {
		field := fmt.Sprintf("spec.egress[%d]", i)
		p.Rules[networkpolicy.Egress] = append(p.Rules[networkpolicy.Egress], c.rule(np.Namespace, field, "to", r.To, r.Ports))
	}
	p.Subject.Namespace = np.Namespace
	pods, why := c.selector("spec.podSelector", &np.Spec.PodSelector)
	p.Subject.Pods = pods
	if why != "" {
		p.Subject.Pods, p.Rules = nil, [2][]networkpolicy.Rule{}
	}
	return p, errors.Join(c.errs...)
}

// policyTypes returns the directions of an object. Without the field it is ingress, and egress if there are rules for it.
func (c *converter) policyTypes(np *networkingv1.NetworkPolicy) (isolates [2]bool) {
	if len(np.Spec.PolicyTypes) == 0 {
		return [2]bool{true, len(np.Spec.Egress) > 0}
	}
	for i, t := range np.Spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			isolates[networkpolicy.Ingress] = true
		case networkingv1.PolicyTypeEgress:
			isolates[networkpolicy.Egress] = true
		default:
			c.fail(fmt.Sprintf("spec.policyTypes[%d]", i), string(t), "must be Ingress or Egress; taken as both")
			isolates = [2]bool{true, true}
		}
	}
	return isolates
}

func (c *converter) rule(namespace, field, peersField string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) networkpolicy.Rule {
	var r networkpolicy.Rule
	for i := range peers {
		r.Peers = append(r.Peers, c.peer(namespace, fmt.Sprintf("%s.%s[%d]", field, peersField, i), &peers[i]))
	}
	for i := range ports {
		r.Ports = append(r.Ports, c.port(fmt.Sprintf("%s.ports[%d]", field, i), &ports[i]))
	}
	return r
}

func (c *converter) peer(namespace, field string, p *networkingv1.NetworkPolicyPeer) networkpolicy.Peer {
	switch {
	case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		return networkpolicy.Peer{Unsupported: c.fail(field+".ipBlock", p.IPBlock.CIDR, "stands beside a selector; make two peers of it")}
	case p.IPBlock != nil:
		return c.block(field+".ipBlock", p.IPBlock)
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		return networkpolicy.Peer{Unsupported: c.fail(field, "", "needs podSelector, namespaceSelector or ipBlock")}
	}
	var s networkpolicy.PodSelector
	var why string
	if p.PodSelector != nil {
		if s.Pods, why = c.selector(field+".podSelector", p.PodSelector); why != "" {
			return networkpolicy.Peer{Unsupported: why}
		}
	}
	if p.NamespaceSelector == nil {
		s.Namespace = namespace
	} else if s.Namespaces, why = c.selector(field+".namespaceSelector", p.NamespaceSelector); why != "" {
		return networkpolicy.Peer{Unsupported: why}
	}
	return networkpolicy.Peer{Pods: &s}
}

func (c *converter) block(field string, b *networkingv1.IPBlock) networkpolicy.Peer {
	cidr, why := c.prefix(field+".cidr", b.CIDR)
	out := &networkpolicy.Block{CIDR: cidr}
	for i, e := range b.Except {
		except, bad := c.prefix(fmt.Sprintf("%s.except[%d]", field, i), e)
		if bad != "" {
			why = bad // without its exception the block would be too large
		}
		out.Except = append(out.Except, except)
	}
	if why != "" {
		return networkpolicy.Peer{Unsupported: why}
	}
	return networkpolicy.Peer{Block: out}
}

// prefix reads a network. Bits beyond its length are cleared, as the API server allows them.
func (c *converter) prefix(field, s string) (netip.Prefix, string) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, c.fail(field, s, "is no network such as 192.0.2.0/24 or 2001:db8::/32, without leading zeros")
	case p.Addr().Is4In6():
		return p, c.fail(field, s, "write IPv4 networks as a.b.c.d/n")
	}
	return p.Masked(), ""
}

func (c *converter) port(field string, p *networkingv1.NetworkPolicyPort) networkpolicy.Port {
	out := networkpolicy.Port{Protocol: networkpolicy.TCP, Last: 1<<16 - 1}
	if p.Protocol != nil {
		var ok bool
		if out.Protocol, ok = protocol(*p.Protocol); !ok {
			return networkpolicy.Port{Unsupported: c.fail(field+".protocol", string(*p.Protocol), "must be TCP, UDP or SCTP")}
		}
	}
	var why string
	switch {
	case p.Port == nil && p.EndPort != nil:
		why = c.fail(field+".endPort", strconv.Itoa(int(*p.EndPort)), "needs a port")
	case p.Port == nil:
	case p.Port.Type == intstr.String && p.EndPort != nil:
		why = c.fail(field+".endPort", strconv.Itoa(int(*p.EndPort)), "needs a port that is a number")
	case p.Port.Type == intstr.String && p.Port.StrVal == "":
		why = c.fail(field+".port", "", "must be a number or a name")
	case p.Port.Type == intstr.String:
		out.Name, out.Last = p.Port.StrVal, 0
	case p.Port.IntVal < 1 || p.Port.IntVal > 1<<16-1:
		why = c.fail(field+".port", p.Port.String(), "must be from 1 to 65535")
	default:
		out.First, out.Last = uint16(p.Port.IntVal), uint16(p.Port.IntVal)
		if p.EndPort == nil {
			break
		}
		if *p.EndPort < p.Port.IntVal || *p.EndPort > 1<<16-1 {
			why = c.fail(field+".endPort", strconv.Itoa(int(*p.EndPort)), "must be from the port to 65535")
			break
		}
		out.Last = uint16(*p.EndPort)
	}
	if why != "" {
		return networkpolicy.Port{Unsupported: why}
	}
	return out
}

func protocol(p corev1.Protocol) (networkpolicy.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP:
		return networkpolicy.TCP, true
	case corev1.ProtocolUDP:
		return networkpolicy.UDP, true
	case corev1.ProtocolSCTP:
		return networkpolicy.SCTP, true
	}
	return networkpolicy.AnyProtocol, false
}

// Selector converts a selector; one without requirements matches everything. Errors are of type *FieldError.
func Selector(field string, s *metav1.LabelSelector) (networkpolicy.Selector, error) {
	var c converter
	out, _ := c.selector(field, s)
	return out, errors.Join(c.errs...)
}

func (c *converter) selector(field string, s *metav1.LabelSelector) (out networkpolicy.Selector, why string) {
	for k, v := range s.MatchLabels {
		out = append(out, networkpolicy.Requirement{Key: k, Operator: networkpolicy.In, Values: []string{v}})
	}
	for i, e := range s.MatchExpressions {
		field := fmt.Sprintf("%s.matchExpressions[%d]", field, i)
		r := networkpolicy.Requirement{Key: e.Key}
		needsValues := false
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			r.Operator, needsValues = networkpolicy.In, true
		case metav1.LabelSelectorOpNotIn:
			r.Operator, needsValues = networkpolicy.NotIn, true
		case metav1.LabelSelectorOpExists:
			r.Operator = networkpolicy.Exists
		case metav1.LabelSelectorOpDoesNotExist:
			r.Operator = networkpolicy.DoesNotExist
		default:
			return nil, c.fail(field+".operator", string(e.Operator), "must be In, NotIn, Exists or DoesNotExist")
		}
		if needsValues != (len(e.Values) > 0) {
			return nil, c.fail(field+".values", strings.Join(e.Values, ","), "are needed for In and NotIn, and for nothing else")
		}
		r.Values = e.Values
		out = append(out, r)
	}
	return out, ""
}
