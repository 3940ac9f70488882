// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

func TestPodAddrs(t *testing.T) {
	const ifaces = `"interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/run/netns/a"},{"name":"eth0"},{"name":"net1","sandbox":"/run/netns/a"}]`
	tests := []struct{ name, ips, want string }{
		{"none", ``, ""},
		{"no interface", `{"address":"10.0.0.2/24"}`, "10.0.0.2/24"},
		{"the pod's", `{"address":"10.0.0.2/24","interface":1},{"address":"fd00::2/64","interface":1}`, "10.0.0.2/24 fd00::2/64"},
		{"the bridge's", `{"address":"10.0.0.1/24","interface":0}`, ""},
		{"same name outside", `{"address":"10.0.0.1/24","interface":2}`, ""},
		{"another of the pod", `{"address":"10.0.0.3/24","interface":3}`, ""},
		{"dangling", `{"address":"10.0.0.4/32","interface":9}`, "10.0.0.4/32"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Common{CNIVersion: "1.0.0", Type: "x", RawPrevResult: []byte(`{"cniVersion":"1.0.0",` + ifaces + `,"ips":[` + tt.ips + `]}`)}
			prev, err := c.Chained()
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for i, p := range PodAddrs(prev, "eth0") {
				if i > 0 {
					got += " "
				}
				got += p.String()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodAddrsOldResult(t *testing.T) {
	c := Common{CNIVersion: "0.2.0", RawPrevResult: []byte(`{"ip4":{"ip":"10.0.0.2/24"},"ip6":{"ip":"fd00::2/64"}}`)}
	prev, err := c.Chained()
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00::2/64")}
	if diff := cmp.Diff(want, PodAddrs(prev, "eth0"), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestChainedNeedsResult(t *testing.T) {
	for _, raw := range []string{"", "null"} {
		c := Common{Type: "portmap", RawPrevResult: []byte(raw)}
		_, err := c.Chained()
		var ce *cnierr.Error
		if !errors.As(err, &ce) || ce.Code != cnierr.CodeConfig {
			t.Errorf("%q: %v", raw, err)
		}
	}
}
