// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

func TestNetfilterCompletes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Flow)
		found  rtnl.Flow
		err    error
		fresh  bool // netfilter has had no entry yet
		want   string
		flag   bool
	}{
		"answered":        {found: rtnl.Flow{Replied: true, TCPState: 3}, want: "established"},
		"answered, UDP":   {change: func(s *Flow) { s.Proto = unix.IPPROTO_UDP }, found: rtnl.Flow{Replied: true}, want: "established"},
		"refused port":    {found: rtnl.Flow{Replied: true, TCPState: rtnl.TCPClose}, want: "closed"},
		"over":            {found: rtnl.Flow{Replied: true, TCPState: rtnl.TCPTimeWait}, want: "closed"},
		"half closed":     {found: rtnl.Flow{Replied: true, TCPState: 5}, want: "closing"},
		"no answer":       {found: rtnl.Flow{TCPState: 1}, want: "unreplied"},
		"no endpoint":     {err: rtnl.ErrNotFound, want: "unreplied", flag: true},
		"nothing tracked": {err: rtnl.ErrNotFound, fresh: true, want: "unreplied"},
		"cannot be asked": {err: errors.New("no permission"), want: "unreplied"},
		"of a client":     {change: func(s *Flow) { s.PodOpened = false }, found: rtnl.Flow{Replied: true}, want: "unreplied"},
		"masqueraded":     {change: func(s *Flow) { s.Outside = netip.MustParseAddrPort("192.0.2.1:1") }, found: rtnl.Flow{Replied: true}, want: "unreplied"},
		"known otherwise": {change: func(s *Flow) { s.State = "new" }, found: rtnl.Flow{Replied: true}, want: "new"},
		"IPv6 is the same": {change: func(s *Flow) {
			s.Pod, s.Remote = netip.MustParseAddrPort("[fd00::2]:9"), netip.MustParseAddrPort("[fd01::1]:80")
		}, found: rtnl.Flow{Replied: true}, want: "established"},
	} {
		s := Flow{Proto: unix.IPPROTO_TCP, Pod: netip.MustParseAddrPort("10.1.0.2:40000"), Remote: netip.MustParseAddrPort("10.96.0.1:443"), State: "unreplied", PodOpened: true}
		if tt.change != nil {
			tt.change(&s)
		}
		n := &netfilter{has: !tt.fresh, find: func(*Flow) (rtnl.Flow, error) { return tt.found, tt.err }}
		n.complete(&s)
		if s.State != tt.want || slices.Contains(s.Flags, notTracked) != tt.flag {
			t.Errorf("%s: %s %q", name, s.State, s.Flags)
		}
	}
	n := &netfilter{asked: maxAsked, find: func(*Flow) (rtnl.Flow, error) { t.Error("asked too often"); return rtnl.Flow{}, nil }}
	n.complete(&Flow{State: "unreplied", PodOpened: true, Pod: netip.MustParseAddrPort("10.1.0.2:1")})
}
