// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// Bug classes 4, 7, 8, 24 and 42, as far as they are read from an object.
func TestPod(t *testing.T) {
	port := func(name string, number int32, proto corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: proto}
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u", Namespace: "shop", Labels: map[string]string{"app": "web"}, CreationTimestamp: metav1.Unix(7, 0)},
		Spec: corev1.PodSpec{NodeName: "node-1",
			Containers: []corev1.Container{
				{Ports: []corev1.ContainerPort{port("http", 80, ""), port("", 81, "TCP"), port("dns", 53, "UDP")}},
				{Ports: []corev1.ContainerPort{port("http", 8080, "TCP"), port("odd", 70000, "TCP"), port("odd", 7, "DCCP")}},
			},
			InitContainers: []corev1.Container{
				{Ports: []corev1.ContainerPort{port("once", 90, "TCP")}},
				{RestartPolicy: ptr(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{port("sidecar", 91, "SCTP")}},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}, {IP: "?"}}},
	}
	got := Pod(p)
	if got.UID != "u" || got.Namespace != "shop" || got.Labels["app"] != "web" || got.Node != "node-1" || !got.Created.Equal(time.Unix(7, 0)) {
		t.Errorf("%+v", got)
	}
	if want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}; !slices.Equal(got.Addrs, want) {
		t.Errorf("addresses %v, want %v", got.Addrs, want)
	}
	want := []networkpolicy.NamedPort{
		{Name: "http", Protocol: networkpolicy.TCP, Number: 80}, {Name: "dns", Protocol: networkpolicy.UDP, Number: 53},
		{Name: "http", Protocol: networkpolicy.TCP, Number: 8080}, {Name: "sidecar", Protocol: networkpolicy.SCTP, Number: 91},
	}
	if !slices.Equal(got.Ports, want) {
		t.Errorf("ports %v, want %v", got.Ports, want)
	}
	for phase, terminal := range map[corev1.PodPhase]bool{corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false, corev1.PodSucceeded: true, corev1.PodFailed: true} {
		p.Status.Phase = phase
		if Pod(p).Terminal != terminal {
			t.Errorf("%s: terminal %t", phase, !terminal)
		}
	}
	p.Status.Phase, p.DeletionTimestamp = corev1.PodRunning, &metav1.Time{Time: time.Unix(8, 0)}
	if Pod(p).Terminal {
		t.Error("a pod that is being deleted is not terminal")
	}
	p.Spec.HostNetwork = true
	if !Pod(p).HostNetwork {
		t.Error("hostNetwork is lost")
	}
	p.Status.PodIPs = nil
	if got := Pod(p).Addrs; len(got) != 1 || got[0] != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("addresses by podIP: %v", got)
	}
	p.Status.PodIP = ""
	if got := Pod(p).Addrs; len(got) != 0 {
		t.Errorf("addresses before there are any: %v", got)
	}
	if got := Namespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}); got.Name != "n" || got.Labels["a"] != "b" {
		t.Errorf("%+v", got)
	}
}

// The runtime knows a static pod by the hash of its manifest. Nobody can have the UID of another pod by writing that annotation.
func TestMirrorPod(t *testing.T) {
	const hash, object, victim = "5d8b09d7dd5ea3d6e5bf6c2bd4a1cf61", "0b9a9f5e-51b8-4ac5-b7f6-0f7ac39cf7d6", "7f2e0c3a-1f52-4f9b-9d3e-0b2f8a6f1c11"
	mirror := func(change func(p *corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			UID: object, Annotations: map[string]string{hashAnnotation: hash, mirrorAnnotation: hash},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1"}},
		}, Spec: corev1.PodSpec{NodeName: "node-1"}}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		change func(p *corev1.Pod)
		want   string
	}{
		"a mirror pod":            {func(*corev1.Pod) {}, hash},
		"a tenant's annotation":   {func(p *corev1.Pod) { delete(p.Annotations, mirrorAnnotation); p.OwnerReferences = nil }, object},
		"not a mirror":            {func(p *corev1.Pod) { delete(p.Annotations, mirrorAnnotation) }, object},
		"mirror of another hash":  {func(p *corev1.Pod) { p.Annotations[mirrorAnnotation] = "x" }, object},
		"without an owner":        {func(p *corev1.Pod) { p.OwnerReferences = nil }, object},
		"owned by a ReplicaSet":   {func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }, object},
		"owned by another's Node": {func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.org/v1" }, object},
		"owned by another node":   {func(p *corev1.Pod) { p.OwnerReferences[0].Name = "node-2" }, object},
		"not scheduled":           {func(p *corev1.Pod) { p.Spec.NodeName, p.OwnerReferences[0].Name = "", "" }, object},
		"another pod's UID": {func(p *corev1.Pod) {
			p.Annotations[hashAnnotation], p.Annotations[mirrorAnnotation] = victim, victim
		}, object},
		"neither annotation": {func(p *corev1.Pod) { p.Annotations = nil }, object},
	} {
		if got := Pod(mirror(c.change)).UID; got != c.want {
			t.Errorf("%s: known as %q, want %q", name, got, c.want)
		}
	}
}
