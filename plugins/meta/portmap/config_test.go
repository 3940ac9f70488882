// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// netconf returns a configuration with extra top-level keys and mappings.
func netconf(extra, mappings string) []byte {
	if extra != "" {
		extra = "," + extra
	}
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net","type":"portmap"%s,"runtimeConfig":{"portMappings":[%s]}}`, extra, mappings)
}

func TestParseRefuses(t *testing.T) {
	const ok = `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`
	tests := []struct {
		name, extra, mappings string
		code                  uint
		want                  string // in the message: key and value
	}{
		{"backend unknown", `"backend":"ipvs"`, ok, cnierr.CodeConfig, `backend "ipvs"`},
		{"backend case", `"backend":"EBPF"`, ok, cnierr.CodeConfig, `backend "EBPF"`},
		{"mark bit low", `"markMasqBit":-1`, ok, cnierr.CodeConfig, `markMasqBit -1`},
		{"mark bit high", `"markMasqBit":32`, ok, cnierr.CodeConfig, `markMasqBit 32`},
		{"mark bit and chain", `"markMasqBit":5,"externalSetMarkChain":"X"`, ok, cnierr.CodeConfig, `externalSetMarkChain "X"`},
		{"nft words for iptables", `"backend":"iptables","conditionsV4":["ip","saddr","192.0.2.1"]`, ok, cnierr.CodeConfig, `conditionsV4 [ip saddr 192.0.2.1]`},
		{"iptables words for nft", `"backend":"nftables","conditionsV6":["!","-s","fd00::1"]`, ok, cnierr.CodeConfig, `conditionsV6 [! -s fd00::1]`},
		{"words of both", `"conditionsV4":["-s","192.0.2.1"],"conditionsV6":["ip6","saddr","fd00::1"]`, ok, cnierr.CodeConfig, `conditionsV6 [ip6 saddr fd00::1]`},
		{"conditions that end the rule", `"conditionsV4":["ip","saddr","192.0.2.1; drop"]`, ok, cnierr.CodeConfig, `conditionsV4 [ip saddr 192.0.2.1; drop]`},
		{"mark chain with a line break", `"externalSetMarkChain":"X\n-A INPUT -j DROP"`, ok, cnierr.CodeConfig, `externalSetMarkChain`},
		{"mark chain that is an option", `"externalSetMarkChain":"-j"`, ok, cnierr.CodeConfig, `externalSetMarkChain "-j"`},
		{"empty mark chain", `"externalSetMarkChain":""`, ok, cnierr.CodeConfig, `externalSetMarkChain ""`},
		{"mark chain for nft", `"backend":"nftables","externalSetMarkChain":"X"`, ok, cnierr.CodeConfig, `externalSetMarkChain "X"`},
		{"hostPort 0", "", `{"hostPort":0,"containerPort":80,"protocol":"tcp"}`, cnierr.CodeConfig, `runtimeConfig.portMappings[0].hostPort 0`},
		{"hostPort high", "", ok + `,{"hostPort":70000,"containerPort":80,"protocol":"tcp"}`, cnierr.CodeConfig, `runtimeConfig.portMappings[1].hostPort 70000`},
		{"hostPort negative", "", `{"hostPort":-1,"containerPort":80,"protocol":"tcp"}`, cnierr.CodeConfig, `runtimeConfig.portMappings[0].hostPort -1`},
		{"containerPort 0", "", `{"hostPort":1,"protocol":"tcp"}`, cnierr.CodeConfig, `runtimeConfig.portMappings[0].containerPort 0`},
		{"containerPort high", "", `{"hostPort":1,"containerPort":65536,"protocol":"tcp"}`, cnierr.CodeConfig, `runtimeConfig.portMappings[0].containerPort 65536`},
		{"hostPort text", "", `{"hostPort":"80","containerPort":80,"protocol":"tcp"}`, cnierr.CodeDecode, `hostPort`},
		{"protocol absent", "", `{"hostPort":1,"containerPort":1}`, cnierr.CodeConfig, `runtimeConfig.portMappings[0].protocol ""`},
		{"protocol unknown", "", `{"hostPort":1,"containerPort":1,"protocol":"icmp"}`, cnierr.CodeConfig, `runtimeConfig.portMappings[0].protocol "icmp"`},
		{"hostIP text", "", `{"hostPort":1,"containerPort":1,"protocol":"tcp","hostIP":"localhost"}`, cnierr.CodeConfig, `runtimeConfig.portMappings[0].hostIP "localhost"`},
		{"hostIP prefix", "", `{"hostPort":1,"containerPort":1,"protocol":"tcp","hostIP":"10.0.0.1/24"}`, cnierr.CodeConfig, `hostIP "10.0.0.1/24"`},
		{"hostIP zone", "", `{"hostPort":1,"containerPort":1,"protocol":"tcp","hostIP":"fe80::1%eth0"}`, cnierr.CodeConfig, `hostIP "fe80::1%eth0"`},
		{"hostIP multicast", "", `{"hostPort":1,"containerPort":1,"protocol":"tcp","hostIP":"224.0.0.1"}`, cnierr.CodeConfig, `hostIP "224.0.0.1"`},
		{"twice", "", `{"hostPort":53,"containerPort":53,"protocol":"tcp"},{"hostPort":53,"containerPort":54,"protocol":"TCP"}`, cnierr.CodeConfig,
			`runtimeConfig.portMappings[1].hostPort 53`},
		{"twice by hostIP", "", `{"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"::1"},{"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"0::1"}`, cnierr.CodeConfig,
			`runtimeConfig.portMappings[1].hostPort 53`},
		{"sources text", `"allowedSources":["lan"]`, ok, cnierr.CodeConfig, `allowedSources "lan"`},
		{"sources bits", `"allowedSources":["192.0.2.1/24"]`, ok, cnierr.CodeConfig, `allowedSources "192.0.2.1/24"`},
		{"sources mapped", `"allowedSources":["::ffff:192.0.2.1"]`, ok, cnierr.CodeConfig, `allowedSources "::ffff:192.0.2.1"`},
		{"sources of a mapping", "", `{"hostPort":1,"containerPort":1,"protocol":"tcp","allowedSources":["192.0.2.0/33"]}`, cnierr.CodeConfig,
			`runtimeConfig.portMappings[0].allowedSources "192.0.2.0/33"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(netconf(tt.extra, tt.mappings))
			if err == nil {
				t.Fatal("accepted")
			}
			ce := cnierr.From(err)
			if ce.Code != tt.code || !strings.Contains(ce.Msg, tt.want) {
				t.Errorf("got code %d %q, want code %d and %q", ce.Code, ce.Msg, tt.code, tt.want)
			}
		})
	}
}

// What only netfilter can do is refused by name where there is only eBPF.
func TestRefusedWithoutNetfilter(t *testing.T) {
	const ok = `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`
	tests := []struct{ name, extra, mappings, want string }{
		{"backend iptables", `"backend":"iptables"`, ok, `backend "iptables"`},
		{"backend nftables", `"backend":"nftables"`, ok, `backend "nftables"`},
		{"conditionsV4", `"conditionsV4":["-m","x"]`, ok, `conditionsV4 [-m x]`},
		{"conditionsV6", `"conditionsV6":["ip6","saddr","fd00::1"]`, ok, `conditionsV6 [ip6 saddr fd00::1]`},
		{"sctp to another port", "", `{"hostPort":1,"containerPort":2,"protocol":"SCTP"}`, `containerPort 2`},
		{"sources", `"backend":"iptables","allowedSources":["192.0.2.0/24"]`, ok, "iptables"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			_, err := n.Add("a", withPrev(tt.extra, tt.mappings))
			n.WantCode(err, cnierr.CodeUnsupported)
			if err != nil && !strings.Contains(cnierr.From(err).Msg, tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			n.wantEmpty()
		})
	}
}

func TestParseAccepts(t *testing.T) {
	tests := []struct{ name, extra, mappings string }{
		{"nothing", "", ""},
		{"auto", `"backend":"auto"`, ""},
		{"ebpf", `"backend":"ebpf"`, ""},
		{"iptables", `"backend":"iptables","conditionsV4":["!","-s","192.0.2.1"]`, ""},
		{"nftables", `"backend":"nftables","conditionsV6":["ip6","saddr","fd00::1"]`, ""},
		{"empty conditions", `"conditionsV4":[],"conditionsV6":null`, ""},
		{"masqAll false", `"masqAll":false`, ""},
		{"mark bit", `"markMasqBit":31`, ""},
		{"mark bit 0", `"markMasqBit":0`, ""},
		{"mark chain", `"externalSetMarkChain":"KUBE-MARK-MASQ"`, ""},
		{"unknown key", `"somebodyElses":{"x":1}`, ""},
		{"other protocol", "", `{"hostPort":53,"containerPort":53,"protocol":"tcp"},{"hostPort":53,"containerPort":53,"protocol":"udp"}`},
		{"other hostIP", "", `{"hostPort":53,"containerPort":53,"protocol":"tcp"},{"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"192.0.2.1"}`},
		{"twice by wildcard", "", `{"hostPort":53,"containerPort":53,"protocol":"tcp"},{"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"0.0.0.0"}`},
		{"masqAll", `"masqAll":true`, ""},
		{"sctp", "", `{"hostPort":53,"containerPort":53,"protocol":"SCTP"}`},
		{"loopback", "", `{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"127.0.0.1"},{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"::1"}`},
		{"sources", `"allowedSources":["192.0.2.0/24","2001:db8::1"]`, `{"hostPort":53,"containerPort":53,"protocol":"udp","allowedSources":[]}`},
		{"both wildcards", "", `{"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"0.0.0.0"},{"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"::"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parse(netconf(tt.extra, tt.mappings)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestParseKeysInAnyCase(t *testing.T) {
	req, err := parse([]byte(`{"cniVersion":"1.0.0","name":"n","RuntimeConfig":{"PortMappings":[{"HostPort":1,"ContainerPort":2,"Protocol":"tcp"}]}}`))
	if err != nil || len(req.mappings) != 1 {
		t.Errorf("%d mappings, %v", len(req.mappings), err)
	}
}

func TestPorts(t *testing.T) {
	var (
		v4 = netip.MustParsePrefix("10.1.0.2/16")
		v6 = netip.MustParsePrefix("fd00::2/64")
	)
	hp := func(host string, port uint16, pod netip.Prefix, proto uint8) hostport.Mapping {
		return hostport.Mapping{Key: hostport.Key{HostIP: netip.MustParseAddr(host), Proto: proto, Port: port}, PodIP: pod.Addr(), PodPort: 80, SNAT: true}
	}
	tests := []struct {
		name, mapping string
		addrs         []netip.Prefix
		want          []hostport.Mapping
	}{
		{"both families", `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`, []netip.Prefix{v4, v6},
			[]hostport.Mapping{hp("0.0.0.0", 8080, v4, 6), hp("::", 8080, v6, 6)}},
		{"one family", `{"hostPort":8080,"containerPort":80,"protocol":"UDP"}`, []netip.Prefix{v6},
			[]hostport.Mapping{hp("::", 8080, v6, 17)}},
		{"first of the family", `{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"192.0.2.1"}`,
			[]netip.Prefix{v6, v4, netip.MustParsePrefix("10.1.0.3/16")}, []hostport.Mapping{hp("192.0.2.1", 8080, v4, 6)}},
		{"other family", `{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"2001:db8::1"}`, []netip.Prefix{v4}, nil},
		{"any of one family", `{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"0.0.0.0"}`, []netip.Prefix{v4, v6},
			[]hostport.Mapping{hp("0.0.0.0", 8080, v4, 6)}},
		{"no address", `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := parse(netconf("", tt.mapping))
			if err != nil {
				t.Fatal(err)
			}
			var got []hostport.Mapping
			for _, hp := range req.ports(tt.addrs) {
				if hp.ebpfUnsupported != nil {
					t.Error(hp.ebpfUnsupported)
				}
				got = append(got, hp.Mapping)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	req, err := parse(netconf(`"snat":false`, `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`))
	if err != nil || req.ports([]netip.Prefix{v4})[0].SNAT {
		t.Errorf("snat false is not carried: %v", err)
	}
}
