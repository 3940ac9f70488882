// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"testing"

	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// Netlink says what the files under /proc/sys say, before and after a change.
func TestPrivilegedConfFromNetlink(t *testing.T) {
	ns := mustNS(t)
	h := mustHandle(t, ns)
	must[int](t)(0, h.AddVeth(VethSpec{HostName: "v0", HostUp: true, PeerName: "v1"}))
	set := func(key, v string) {
		t.Helper()
		if err := ns.Do(func() error { return sysctl.Set(key, v) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		key, v string
		ask    func() (bool, error)
		want   bool
	}{
		{"net/ipv4/ip_forward", "0", func() (bool, error) { return h.Forwarding(FamilyV4) }, false},
		{"net/ipv4/ip_forward", "1", func() (bool, error) { return h.Forwarding(FamilyV4) }, true},
		{"net/ipv4/conf/v0/forwarding", "0", func() (bool, error) { return h.DeviceForwarding(FamilyV4, must[Link](t)(h.LinkByName("v0")).Index) }, false},
		{"net/ipv4/conf/v0/forwarding", "1", func() (bool, error) { return h.DeviceForwarding(FamilyV4, must[Link](t)(h.LinkByName("v0")).Index) }, true},
		{"net/ipv6/conf/all/forwarding", "0", func() (bool, error) { return h.Forwarding(FamilyV6) }, false},
		{"net/ipv6/conf/all/forwarding", "1", func() (bool, error) { return h.Forwarding(FamilyV6) }, true},
		{"net/ipv6/conf/v0/accept_ra", "0", func() (bool, error) { l, err := h.LinkByName("v0"); return l.NoRA, err }, true},
		{"net/ipv6/conf/v0/accept_ra", "2", func() (bool, error) { l, err := h.LinkByName("v0"); return l.NoRA, err }, false},
	} {
		set(tt.key, tt.v)
		if got, err := tt.ask(); err != nil || got != tt.want {
			t.Errorf("%s = %s: netlink says %v, %v", tt.key, tt.v, got, err)
		}
	}
}

func TestPrivilegedIndexByName(t *testing.T) {
	ns := mustNS(t)
	h := mustHandle(t, ns)
	must[int](t)(0, h.AddVeth(VethSpec{HostName: "v0", PeerName: "v1"}))
	for _, name := range []string{"v0", "v1"} {
		want := must[Link](t)(h.LinkByName(name))
		if got, err := h.IndexByName(name); err != nil || got != want.Index {
			t.Errorf("%s: index %d, %v; want %d", name, got, err, want.Index)
		}
	}
	for _, name := range []string{"none", "a-name-that-is-too-long"} {
		if _, err := h.IndexByName(name); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
