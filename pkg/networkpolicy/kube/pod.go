// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// Namespace converts an object.
func Namespace(ns *corev1.Namespace) networkpolicy.Namespace {
	return networkpolicy.Namespace{Name: ns.Name, Labels: ns.Labels}
}

// Pod converts an object. Addresses that cannot be read are left out, so such a pod is a peer of nobody.
func Pod(p *corev1.Pod) networkpolicy.Pod {
	return networkpolicy.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Labels: p.Labels, Node: p.Spec.NodeName, Created: p.CreationTimestamp.Time,
		Addrs: addrs(&p.Status), Ports: namedPorts(&p.Spec), HostNetwork: p.Spec.HostNetwork,
		Terminal: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
}

func addrs(s *corev1.PodStatus) []netip.Addr {
	out := make([]netip.Addr, 0, len(s.PodIPs))
	for _, ip := range s.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		if a, err := netip.ParseAddr(s.PodIP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// namedPorts returns the ports of containers that run as long as the pod does.
func namedPorts(s *corev1.PodSpec) []networkpolicy.NamedPort {
	var out []networkpolicy.NamedPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			proto, ok := protocol(p.Protocol)
			if p.Protocol == "" {
				proto, ok = networkpolicy.TCP, true
			}
			if p.Name != "" && ok && p.ContainerPort >= 1 && p.ContainerPort <= 1<<16-1 {
				out = append(out, networkpolicy.NamedPort{Name: p.Name, Protocol: proto, Number: uint16(p.ContainerPort)})
			}
		}
	}
	for i := range s.Containers {
		add(&s.Containers[i])
	}
	for i := range s.InitContainers {
		if c := &s.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return out
}
