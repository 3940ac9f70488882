// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var plain = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse("isolated", json.RawMessage(`{
		"ingress": [{"action": "deny", "cidrs": ["192.0.2.7", "fd00::/8"], "protocol": "tcp", "ports": [80, "8000-8100"]}],
		"egress": [{"action": "allow", "protocol": "icmp"}], "egressDefault": "deny"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Policy{
		Mode: ModeIsolated, DenyEgress: true,
		Ingress: []Rule{{
			CIDRs:    []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("fd00::/8")},
			Protocol: ProtocolTCP, Ports: []PortRange{{80, 80}, {8000, 8100}},
		}},
		Egress: []Rule{{Allow: true, Protocol: ProtocolICMP}},
	}
	if diff := cmp.Diff(want, got, plain); diff != "" {
		t.Error(diff)
	}
	if n := len(Entries(got.Ingress)); n != 4 {
		t.Errorf("%d entries, want each network with each range", n)
	}
	icmp := []Entry{{Allow: true, V4: true, Proto: 1}, {Allow: true, V6: true, Proto: 58}}
	if diff := cmp.Diff(icmp, Entries(got.Egress), plain); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ mode, rules, key, why string }{
		{"closed", "", "ingressPolicy", "must be"},
		{"", `[]`, "rules", "cannot unmarshal"},
		{"", `{"default":"deny"}`, "rules", "unknown field"},
		{"", `{"ingressDefault":"drop"}`, "rules.ingressDefault", "allow or deny"},
		{"", `{"ingress":[{"action":"deny","cidrs":[]}]}`, "rules.ingress[0].cidrs", "matches nothing"},
		{"", `{"ingress":[{"action":"deny","ports":[]}]}`, "rules.ingress[0].ports", "matches nothing"},
		{"", `{"ingress":[{"action":"deny","ports":["0"]}]}`, "rules.ingress[0].ports[0]", "1-65535"},
		{"", `{"ingress":[{"action":"deny","ports":[65536]}]}`, "rules.ingress[0].ports[0]", "1-65535"},
		{"", `{"ingress":[{"action":"deny"},{"action":"deny","protocol":"gre"}]}`, "rules.ingress[1].protocol", "must be"},
		{"", `{"egress":[{"action":"deny","cidrs":["::ffff:10.0.0.0/104"]}]}`, "rules.egress[0].cidrs[0]", "a.b.c.d"},
		{"", `{"egress":[{"action":"allow"}]}`, "rules.egressDefault", "restrict nothing"},
	}
	for _, tt := range tests {
		_, err := Parse(tt.mode, json.RawMessage(tt.rules))
		var e *Error
		if !errors.As(err, &e) || e.Key != tt.key || !strings.Contains(e.Why, tt.why) {
			t.Errorf("%s %s: %v, want %s: %s", tt.mode, tt.rules, err, tt.key, tt.why)
		}
	}
}

// The number of entries is bounded, and the bound is told.
func TestParseBound(t *testing.T) {
	t.Parallel()
	many := func(n int) json.RawMessage {
		cidrs := make([]string, n)
		for i := range cidrs {
			cidrs[i] = fmt.Sprintf(`"10.0.%d.0/24"`, i)
		}
		return json.RawMessage(`{"ingress":[{"action":"deny","ports":[1,2],"cidrs":[` + strings.Join(cidrs, ",") + `]}]}`)
	}
	if _, err := Parse("", many(MaxEntries/2)); err != nil {
		t.Error(err)
	}
	if _, err := Parse("", many(MaxEntries/2+1)); err == nil || !strings.Contains(err.Error(), "at most 256") {
		t.Errorf("one too many: %v", err)
	}
}

// A rule of many CIDRs and ports is refused by its count: nothing of the size of their product is built.
func TestParseBoundMemory(t *testing.T) {
	const each = 4000
	var ports, cidrs []string
	for i := range each {
		ports, cidrs = append(ports, strconv.Itoa(1000+i)), append(cidrs, fmt.Sprintf(`"10.%d.%d.0/24"`, i/256, i%256))
	}
	rules := json.RawMessage(`{"ingress":[{"action":"deny","ports":[` + strings.Join(ports, ",") + `],"cidrs":[` + strings.Join(cidrs, ",") + `]}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Parse("", rules)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(each*each)) {
		t.Errorf("got %v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > uint64(100*len(rules)) {
		t.Errorf("%d bytes for %d of input", used, len(rules))
	}
}

func TestWithoutBridge(t *testing.T) {
	t.Parallel()
	p := &Policy{Mode: ModeIsolated, Ingress: []Rule{{Protocol: ProtocolUDP}}}
	got, ok := p.WithoutBridge([]netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}, []netip.Addr{netip.MustParseAddr("10.1.0.1")})
	first := []Rule{
		{Allow: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/32")}},
		{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fe80::/10")}},
	}
	want := &Policy{Mode: ModeOpen, Egress: first, Ingress: append(first[:2:2], Rule{Protocol: ProtocolUDP})}
	if diff := cmp.Diff(want, got, plain); diff != "" || !ok {
		t.Error(diff)
	}
	if _, ok := (&Policy{Mode: ModeSameBridge}).WithoutBridge(nil, nil); ok {
		t.Error("same-bridge means something without a bridge")
	}
	if q, ok := (*Policy)(nil).WithoutBridge(nil, nil); q != nil || !ok {
		t.Error("no policy")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("isolated", `{"ingress":[{"action":"deny","cidrs":["10.0.0.0/8"],"ports":["1-2"]}]}`)
	f.Fuzz(func(t *testing.T, mode, rules string) {
		p, err := Parse(mode, json.RawMessage(rules))
		if err != nil {
			return
		}
		for _, rules := range [][]Rule{p.Ingress, p.Egress} {
			if n := len(Entries(rules)); n != CountEntries(rules) || n > MaxEntries {
				t.Errorf("%d entries, counted %d", n, CountEntries(rules))
			}
		}
	})
}
