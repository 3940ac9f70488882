// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func pod(name string, ips ...string) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name), Labels: map[string]string{"app": "cart", "pod-template-hash": "5f8"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "cart-5f8", Controller: &yes}}}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// following is a cache as it is while it is used, without an API server.
func following() *Cache {
	c := New(nil, func() (self, others []netip.Addr) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	}, nil)
	c.pods, c.services = map[types.UID]*entry{}, map[types.UID]*entry{}
	c.byAddr, c.byIP = map[netip.Addr]*entry{}, map[netip.Addr]*entry{}
	return c
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	c := following()
	note := func(kind watch.EventType, p *corev1.Pod) {
		c.note(t.Context(), watch.Event{Type: kind, Object: p}, c.pods, c.byAddr, c.podEntry)
	}
	c.note(t.Context(), watch.Event{Type: watch.Added, Object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop", UID: "s"},
		Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.7", "None"}}}}, c.services, c.byIP, serviceEntry)
	note(watch.Added, pod("a", "10.1.0.2", "fd00::2"))
	e := c.Endpoint(netip.MustParseAddr("fd00::2"))
	if e.GetNamespace() != "shop" || e.GetPodName() != "a" || fmt.Sprint(e.GetLabels()) != "[k8s:app=cart k8s:io.kubernetes.pod.namespace=shop]" ||
		e.GetWorkloads()[0].GetKind() != "Deployment" || e.GetWorkloads()[0].GetName() != "cart" || e.GetIdentity() < 1<<24 {
		t.Errorf("%v", e)
	}
	if s := c.Service(netip.MustParseAddr("10.96.0.7")); s.GetName() != "cart" || s.GetNamespace() != "shop" {
		t.Errorf("%v", s)
	}
	if s := c.Endpoint(netip.MustParseAddr("10.96.0.7")); s.GetNamespace() != "shop" || s.GetPodName() != "" || s.GetIdentity() < 1<<24 || s.GetIdentity() == e.GetIdentity() ||
		fmt.Sprint(s.GetLabels()) != "[k8s:io.kubernetes.pod.namespace=shop k8s:kubernetes.io/service-name=cart]" || s.GetWorkloads()[0].GetKind() != "Service" || s.GetWorkloads()[0].GetName() != "cart" {
		t.Errorf("%v", s)
	}
	for ip, label := range map[string]string{"192.0.2.1": "reserved:host", "192.0.2.2": "reserved:remote-node", "198.51.100.7": "reserved:world"} {
		if e := c.Endpoint(netip.MustParseAddr(ip)); len(e.GetLabels()) != 1 || e.GetLabels()[0] != label {
			t.Errorf("%s: %v", ip, e)
		}
	}

	// An address that another pod has got stays that one's when the former pod goes at last.
	note(watch.Added, pod("b", "10.1.0.2"))
	note(watch.Deleted, pod("a"))
	if e := c.Endpoint(netip.MustParseAddr("10.1.0.2")); e.GetPodName() != "b" {
		t.Errorf("%v", e)
	}
	ended := pod("b", "10.1.0.2")
	ended.Status.Phase = corev1.PodSucceeded
	note(watch.Modified, ended)
	host := pod("c", "192.0.2.1")
	host.Spec.HostNetwork = true
	note(watch.Added, host)
	if len(c.pods) != 0 || len(c.byAddr) != 0 {
		t.Errorf("%d pods, %d addresses are left", len(c.pods), len(c.byAddr))
	}
	c.note(t.Context(), watch.Event{Type: watch.Bookmark}, c.services, c.byIP, serviceEntry)
	if c.Service(netip.MustParseAddr("10.96.0.7")) != nil {
		t.Error("a Service of the list before")
	}
}

// What tenants can make the agent keep is bounded: pods, labels and their lengths.
func TestBounds(t *testing.T) {
	t.Parallel()
	c := following()
	for i := range maxNames + 10 {
		p := pod(fmt.Sprint("p", i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
		p.Labels = map[string]string{"long": strings.Repeat("x", maxLabel)}
		for l := range 2 * maxLabels {
			if i == 0 {
				p.Labels[fmt.Sprint("l", l)] = "v"
			}
		}
		c.note(t.Context(), watch.Event{Type: watch.Added, Object: p}, c.pods, c.byAddr, c.podEntry)
	}
	if len(c.pods) != maxNames || len(c.byAddr) != maxNames {
		t.Errorf("%d pods, %d addresses", len(c.pods), len(c.byAddr))
	}
	labels := c.Endpoint(netip.MustParseAddr("10.0.0.0")).GetLabels()
	if len(labels) != maxLabels || strings.Contains(strings.Join(labels, ","), "long") {
		t.Errorf("%d labels: %v", len(labels), labels)
	}
	if e := following().Endpoint(netip.MustParseAddr("10.0.0.0")); e.GetPodName() != "" {
		t.Errorf("%v", e)
	}
}
