// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// Namespace converts an object.
func Namespace(ns *corev1.Namespace) networkpolicy.Namespace {
	return networkpolicy.Namespace{Name: ns.Name, Labels: ns.Labels}
}

// Pod converts an object. Addresses that cannot be read are left out, so such a pod is a peer of nobody. The UID is the one by which the
// runtime of the node knows the pod, so a static pod has another one than its object.
func Pod(p *corev1.Pod) networkpolicy.Pod {
	return networkpolicy.Pod{
		UID: runtimeUID(p), Namespace: p.Namespace, Labels: p.Labels, Node: p.Spec.NodeName, Created: p.CreationTimestamp.Time,
		Addrs: addrs(&p.Status), Ports: namedPorts(&p.Spec), HostNetwork: p.Spec.HostNetwork,
		Terminal: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
}

// The annotations of a mirror pod, which is the object of a static pod in the API.
const (
	hashAnnotation   = "kubernetes.io/config.hash"
	mirrorAnnotation = "kubernetes.io/config.mirror"
)

// runtimeUID returns the UID that kubelet tells the runtime. For a static pod kubelet makes it from the manifest, as an MD5 in hex, and
// writes it into both annotations of the mirror pod. The API server lets a kubelet write that only for its own node, which is the owner.
//
// A tenant who may create pods can write all of it too. So the annotation is trusted only where it cannot be the UID of another object:
// those are UUIDs, which have another form. A static pod whose manifest sets a UID of its own is known by its object's, and gets nothing.
func runtimeUID(p *corev1.Pod) string {
	hash := p.Annotations[hashAnnotation]
	if p.Annotations[mirrorAnnotation] == hash && isMD5(hash) && p.Spec.NodeName != "" && slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.APIVersion == "v1" && o.Kind == "Node" && o.Name == p.Spec.NodeName
	}) {
		return hash
	}
	return string(p.UID)
}

func isMD5(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
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
