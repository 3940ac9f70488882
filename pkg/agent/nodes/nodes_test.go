// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/agent/routes"
)

func TestTrim(t *testing.T) {
	t.Parallel()
	made := metav1.NewTime(time.Unix(1000, 0))
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", UID: "u", ResourceVersion: "7", CreationTimestamp: made, Labels: map[string]string{"x": "y"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
			Annotations: map[string]string{"sluice-cni.io/routing": "vxlan", "flannel.alpha.coreos.com/public-ip": "192.0.2.1", "node.alpha.kubernetes.io/ttl": "0"},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd24::/64"}, ProviderID: "p"},
		Status: corev1.NodeStatus{
			Images:    []corev1.ContainerImage{{Names: []string{"i"}}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"}},
		},
	}
	want := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "7", CreationTimestamp: made,
			Annotations: map[string]string{"sluice-cni.io/routing": "vxlan", "flannel.alpha.coreos.com/public-ip": "192.0.2.1"}},
		Spec:   corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24", "fd24::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"}}},
	}
	for range 2 { // a list trims, and the informer's transform again
		trim(n)
		if diff := cmp.Diff(want, n); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	got, bad := convert(n)
	wantNode := routes.Node{
		Name: "a", Annotations: want.Annotations, Created: made.Time, InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd24::/64")},
	}
	if diff := cmp.Diff(wantNode, got, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})); diff != "" || len(bad) > 0 {
		t.Errorf("bad %v (-want +got):\n%s", bad, diff)
	}
}

// What a node says of itself may be anything.
func TestConvertBad(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"x", "10.244.1.1/24", "::ffff:10.0.0.0/104", "10.244.2.0/24"}}}
	for _, a := range []string{"", "a", "fe80::1%eth0", "::ffff:192.0.2.9"} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	got, bad := convert(n)
	if len(bad) != 3 || len(got.PodCIDRs) != 1 || !slices.Equal(got.InternalIPs, []netip.Addr{netip.MustParseAddr("192.0.2.9")}) {
		t.Errorf("%+v, bad %q", got, bad)
	}
	single := &corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24"}}
	trim(single)
	if got, _ := convert(single); len(got.PodCIDRs) != 1 {
		t.Errorf("of podCIDR alone: %+v", got)
	}
}

func TestWanting(t *testing.T) {
	t.Parallel()
	self := routes.Node{Annotations: map[string]string{"a": "1", "b": "2", "c": "3"}}
	got := Wanting(self, map[string]string{"a": "1", "b": "9", "c": "", "d": "4", "e": ""})
	if diff := cmp.Diff(map[string]string{"b": "9", "c": "", "d": "4"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
