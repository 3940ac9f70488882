// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

func TestPrivilegedTap(t *testing.T) {
	require.Link(t, "tap")
	n := mustNS(t)
	h := mustHandle(t, n)
	tests := []TapSpec{
		{Name: "tap0"},
		{Name: "tap1", Owner: ptr(uint32(1000))},
		{Name: "tap2", Group: ptr(uint32(0)), MultiQueue: true},
		{Name: "tap3", Owner: ptr(uint32(4000000000)), Group: ptr(uint32(36))},
	}
	for _, s := range tests {
		ok(t, n.Do(func() error { return AddTap(s) }))
		l := must[Link](t)(h.LinkByName(s.Name))
		want := &Tun{Tap: true, Owner: s.Owner, Group: s.Group, Persist: true, MultiQueue: s.MultiQueue}
		if d := cmp.Diff(want, l.Tun); d != "" || l.Kind != "tun" || l.Up {
			t.Errorf("%s is %+v (- want, + got):\n%s", s.Name, l, d)
		}
		if err := n.Do(func() error { return AddTap(s) }); !errors.Is(err, ErrExist) {
			t.Errorf("second %s: %v, want ErrExist", s.Name, err)
		}
	}
	if err := n.Do(func() error { return AddTap(TapSpec{Name: "lo"}) }); !errors.Is(err, ErrExist) {
		t.Errorf("a tap called lo: %v, want ErrExist", err)
	}
	if links := must[[]Link](t)(h.Links()); len(links) != len(tests)+1 {
		t.Errorf("%d links, want %d", len(links), len(tests)+1)
	}
}
