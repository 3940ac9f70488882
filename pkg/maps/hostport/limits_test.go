// SPDX-License-Identifier: Apache-2.0

package hostport_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

func TestCount(t *testing.T) {
	t.Parallel()
	at := func(host string, proto uint8, port uint16) hostport.Mapping {
		return hostport.Mapping{Key: hostport.Key{HostIP: netip.MustParseAddr(host), Proto: proto, Port: port}}
	}
	for name, tt := range map[string]struct {
		ports []hostport.Mapping
		want  int
	}{
		"none":                      {nil, 0},
		"one, in both families":     {[]hostport.Mapping{at("0.0.0.0", unix.IPPROTO_TCP, 80), at("::", unix.IPPROTO_TCP, 80)}, 1},
		"two protocols":             {[]hostport.Mapping{at("0.0.0.0", unix.IPPROTO_TCP, 80), at("0.0.0.0", unix.IPPROTO_UDP, 80)}, 2},
		"two ports":                 {[]hostport.Mapping{at("0.0.0.0", unix.IPPROTO_TCP, 80), at("::", unix.IPPROTO_TCP, 81)}, 2},
		"two host addresses":        {[]hostport.Mapping{at("192.0.2.1", unix.IPPROTO_TCP, 80), at("2001:db8::1", unix.IPPROTO_TCP, 80)}, 2},
		"an address and all others": {[]hostport.Mapping{at("192.0.2.1", unix.IPPROTO_TCP, 80), at("0.0.0.0", unix.IPPROTO_TCP, 80)}, 2},
		"one address in two words":  {[]hostport.Mapping{at("192.0.2.1", unix.IPPROTO_TCP, 80), at("::ffff:192.0.2.1", unix.IPPROTO_TCP, 80)}, 1},
	} {
		if got := hostport.Count(tt.ports); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	ports := []hostport.Mapping{
		{Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: unix.IPPROTO_TCP, Port: 80}, AllowedSources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		{Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: unix.IPPROTO_TCP, Port: 81}, AllowedSources: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}},
	}
	for _, tt := range []struct {
		limits hostport.Limits
		want   error
		words  []string
	}{
		{hostport.Limits{Mappings: 2, Sources: 2}, nil, nil},
		{hostport.Limits{Mappings: 1, Sources: 2}, hostport.ErrTooMany, []string{"2,", "hostPortsPerAttachment", "allows 1"}},
		{hostport.Limits{Mappings: 2, Sources: 1}, hostport.ErrTooManySources, []string{"2 networks", "allowedSourcesPerAttachment", "allows 1"}},
	} {
		err := tt.limits.Check(ports)
		if !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v, want %v", tt.limits, err, tt.want)
		}
		for _, word := range tt.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q does not have %q", err, word)
			}
		}
	}
}
