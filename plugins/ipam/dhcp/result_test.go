// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// ackOf is a server's answer with an address, a mask and what more says.
func ackOf(t testing.TB, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	ack, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(net.IPv4(10, 1, 2, 3)),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 1, 2, 1))),
	}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

func TestResult(t *testing.T) {
	t.Parallel()
	router := dhcpv4.WithRouter(net.IPv4(10, 1, 2, 1), net.IPv4(10, 1, 2, 2))
	old := dhcpv4.WithGeneric(dhcpv4.OptionStaticRoutingTable, []byte{10, 9, 9, 9, 10, 1, 2, 5, 192, 168, 7, 1, 10, 1, 2, 6, 0, 0, 0, 0, 10, 1, 2, 7, 1, 2})
	tests := []struct {
		name     string
		more     []dhcpv4.Modifier
		priority int
		want     string
	}{
		{"address alone", nil, 0, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24"}]}`},
		{"router", []dhcpv4.Modifier{router}, 9, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1","priority":9}]}`},
		{"old routes", []dhcpv4.Modifier{router, old}, 0, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1"}],"routes":[{"dst":"10.0.0.0/8","gw":"10.1.2.5"},{"dst":"192.168.7.0/24","gw":"10.1.2.6"},{"dst":"0.0.0.0/0","gw":"10.1.2.1"}]}`},
		{
			"classless routes hide the others",
			[]dhcpv4.Modifier{router, old, dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(
				&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 5, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}, Router: net.IPv4(10, 1, 2, 9).To4()},
				&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 6, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}, Router: net.IPv4zero.To4()},
			))}, 0,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1"}],"routes":[{"dst":"10.5.0.0/16","gw":"10.1.2.9"},{"dst":"10.6.0.0/16","gw":"0.0.0.0","scope":253}]}`,
		},
		{"name resolution", []dhcpv4.Modifier{dhcpv4.WithDNS(net.IPv4(10, 1, 2, 8)), dhcpv4.WithGeneric(dhcpv4.OptionDomainName, []byte("x.test")), dhcpv4.WithDomainSearchList("a.test", "b.test")}, 0, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.3/24"}],"dns":{"nameservers":["10.1.2.8"],"domain":"x.test","search":["a.test","b.test"]}}`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			res, err := resultOf(ackOf(t, tc.more...), tc.priority)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(res)
			if err != nil {
				t.Fatal(err)
			}
			var want, have any
			for into, from := range map[*any][]byte{&want: []byte(tc.want), &have: got} {
				if err := json.Unmarshal(from, into); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(want, have); d != "" {
				t.Errorf("result (-want +got):\n%s", d)
			}
		})
	}
}

func TestUnusableAnswers(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]dhcpv4.Modifier{
		"no mask":    dhcpv4.WithoutOption(dhcpv4.OptionSubnetMask),
		"holes":      dhcpv4.WithNetmask(net.IPv4Mask(255, 0, 255, 0)),
		"no address": dhcpv4.WithYourIP(net.IPv4zero),
	} {
		if res, err := resultOf(ackOf(t, m), 0); err == nil {
			t.Errorf("%s: %v", name, res)
		}
	}
}

// An address that no host has is refused, and one that a host has is not, also at the edges.
func TestOfferedAddresses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		addr string
		ok   bool
	}{
		{"127.0.0.1/8", false},
		{"127.1.2.3/24", false},
		{"0.1.2.3/24", false},
		{"224.0.0.1/24", false},
		{"239.255.255.250/24", false},
		{"255.255.255.255/32", false},
		{"10.1.2.0/24", false},
		{"10.1.2.255/24", false},
		{"10.1.3.255/22", false},
		{"10.1.2.255/22", true},
		{"10.1.2.0/31", true},
		{"10.1.2.1/31", true},
		{"10.1.2.0/32", true},
		{"169.254.7.7/16", true},
		{"100.64.0.9/10", true},
		{"240.1.2.3/24", true}, // clouds give them to hosts
		{"10.1.2.3/0", true},
	} {
		ip, n, err := net.ParseCIDR(tc.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, err = resultOf(ackOf(t, dhcpv4.WithYourIP(ip), dhcpv4.WithNetmask(n.Mask)), 0)
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.addr, err)
		}
		if err != nil && !strings.Contains(err.Error(), ip.String()) {
			t.Errorf("the error does not name %s: %v", ip, err)
		}
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	seconds := func(code dhcpv4.OptionCode, s byte) dhcpv4.Modifier {
		return dhcpv4.WithGeneric(code, []byte{0, 0, 0, s})
	}
	lease100 := dhcpv4.WithLeaseTime(100)
	tests := []struct {
		name                  string
		more                  []dhcpv4.Modifier
		renew, rebind, expire time.Duration
	}{
		{"nothing said", nil, 30 * time.Minute, 51 * time.Minute, time.Hour},
		{"lease time", []dhcpv4.Modifier{lease100}, 50 * time.Second, 85 * time.Second, 100 * time.Second},
		{"all", []dhcpv4.Modifier{lease100, seconds(dhcpv4.OptionRenewTimeValue, 20), seconds(dhcpv4.OptionRebindingTimeValue, 30)}, 20 * time.Second, 30 * time.Second, 100 * time.Second},
		{"T2 beyond the end", []dhcpv4.Modifier{lease100, seconds(dhcpv4.OptionRebindingTimeValue, 200)}, 50 * time.Second, 85 * time.Second, 100 * time.Second},
		{"T1 beyond T2", []dhcpv4.Modifier{lease100, seconds(dhcpv4.OptionRenewTimeValue, 90)}, 50 * time.Second, 85 * time.Second, 100 * time.Second},
		{"zeros", []dhcpv4.Modifier{lease100, seconds(dhcpv4.OptionRenewTimeValue, 0), seconds(dhcpv4.OptionRebindingTimeValue, 0)}, 50 * time.Second, 85 * time.Second, 100 * time.Second},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var from time.Time
			got := timesOf(ackOf(t, tc.more...), from)
			if got.renew.Sub(from) != tc.renew || got.rebind.Sub(from) != tc.rebind || got.expire.Sub(from) != tc.expire {
				t.Errorf("%v %v %v, want %v %v %v", got.renew.Sub(from), got.rebind.Sub(from), got.expire.Sub(from), tc.renew, tc.rebind, tc.expire)
			}
		})
	}
}

func FuzzResult(f *testing.F) {
	f.Add([]byte{121, 3, 8, 10, 10, 33, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 4, 1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, options []byte) {
		m, err := dhcpv4.FromBytes(append(ackOf(t).ToBytes()[:240], options...))
		if err != nil {
			return
		}
		m.YourIPAddr = net.IPv4(10, 1, 2, 3)
		_, _ = resultOf(m, 1)
		when := timesOf(m, time.Time{})
		if when.renew.After(when.rebind) || when.rebind.After(when.expire) {
			t.Errorf("times out of order: %+v", when)
		}
	})
}

// RFC 2132 section 2: a receiver must be ready for a trailing NUL in a text.
func TestTrailingNUL(t *testing.T) {
	t.Parallel()
	if got := dnsOf(ackOf(t, dhcpv4.WithOption(dhcpv4.OptDomainName("corp.test\x00")))).Domain; got != "corp.test" {
		t.Errorf("dns.domain is %q", got)
	}
}

// RFC 3442: where the destination has bits beyond its mask, the client drops them. A kernel refuses such a route.
func TestClasslessHostBits(t *testing.T) {
	t.Parallel()
	res, err := resultOf(ackOf(t, dhcpv4.WithGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{25, 129, 210, 177, 132, 10, 1, 2, 9})), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Routes[0].Dst.String(); got != "129.210.177.128/25" {
		t.Errorf("a route to %s", got)
	}
}
