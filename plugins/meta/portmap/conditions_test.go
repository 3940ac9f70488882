// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

func TestParseMatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		words string
		six   bool
		want  hostport.Conditions
		proto string
		err   string // in the error
	}{
		{words: ""},
		{words: "-s 10.0.0.0/8", want: hostport.Conditions{Source: netip.MustParsePrefix("10.0.0.0/8")}},
		{words: "! -s 10.1.2.3/8", want: hostport.Conditions{Source: netip.MustParsePrefix("10.0.0.0/8"), NotSource: true}},
		{words: "--source 10.0.0.0/255.0.0.0", want: hostport.Conditions{Source: netip.MustParsePrefix("10.0.0.0/8")}},
		{words: "! -d 192.0.2.1 -i eth0", want: hostport.Conditions{Dest: netip.MustParsePrefix("192.0.2.1/32"), NotDest: true, InDevice: "eth0"}},
		{words: "-p TCP ! -i eth1", want: hostport.Conditions{InDevice: "eth1", NotIn: true}, proto: "tcp"},
		{words: "--dst 2001:db8::/32", six: true, want: hostport.Conditions{Dest: netip.MustParsePrefix("2001:db8::/32")}},
		{words: "-s 2001:db8::/32", err: "family"},
		{words: "-s 10.0.0.0/8", six: true, err: "family"},
		{words: "-s 10.0.0.1,10.0.0.2", err: "family"},
		{words: "-s 10.0.0.0/255.0.255.0", err: "mask"},
		{words: "-s 10.0.0.0/40", err: "not a network"},
		{words: "-s host.example", err: "family"},
		{words: "-s", err: "no value"},
		{words: "!", err: "no value"},
		{words: "-s 10.0.0.1 --src 10.0.0.2", err: "twice"},
		{words: "-m comment --comment x", err: `"-m"`},
		{words: "-i eth+", err: "more than one"},
		{words: "! -p tcp", err: "-p"},
		{words: "-p 6", err: `"6"`},
		{words: "-p dccp", err: `"dccp"`},
		{words: "ip saddr 10.0.0.0/8", err: `"ip"`},
	}
	for _, tt := range tests {
		t.Run(tt.words, func(t *testing.T) {
			t.Parallel()
			got, proto, err := parseMatch(strings.Fields(tt.words), !tt.six)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want an error with %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Prefix{})); err != nil || diff != "" || proto != tt.proto {
				t.Errorf("%v, protocol %q\n%s", err, proto, diff)
			}
		})
	}
}

// What the eBPF backend cannot do is refused by its key.
func TestEBPFUnsupported(t *testing.T) {
	t.Parallel()
	four := hostport.Mapping{Key: hostport.Key{Proto: unix.IPPROTO_SCTP, Port: 80}, PodIP: netip.MustParseAddr("10.1.0.2"), PodPort: 80}
	moved := four
	moved.PodPort = 81
	s, err := parse(netconf(`"conditionsV6":["-m","x"]`, ""))
	if err != nil {
		t.Fatal(err)
	}
	six := four
	six.PodIP = netip.MustParseAddr("fd00::2")
	for _, tt := range []struct {
		hp   hostport.Mapping
		want string
	}{{four, ""}, {moved, "containerPort 81"}, {six, "conditionsV6 [-m x]"}} {
		hp, _ := s.withConditions(tt.hp)
		err := hp.ebpfUnsupported
		if tt.want == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if ce := cnierr.From(err); ce == nil || ce.Code != cnierr.CodeUnsupported || !strings.Contains(ce.Msg, tt.want) {
			t.Errorf("got %v, want code 2 and %q", err, tt.want)
		}
	}
}

// A mapping of another protocol than the condition's is not published.
func TestConditionOfProtocol(t *testing.T) {
	t.Parallel()
	req, err := parse(netconf(`"conditionsV4":["-p","udp"]`, `{"hostPort":1,"containerPort":1,"protocol":"tcp"},{"hostPort":2,"containerPort":2,"protocol":"udp"}`))
	if err != nil {
		t.Fatal(err)
	}
	ports := req.ports([]netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")})
	if len(ports) != 1 || ports[0].Port != 2 {
		t.Errorf("%+v", ports)
	}
}

// fakeNetfilter chooses tables that nothing is done with.
type fakeNetfilter struct {
	Netfilter
	netfilter.Tables
	byDefault string
	firewalld bool
}

func (f fakeNetfilter) Default() string { return f.byDefault }

func (f fakeNetfilter) FirewalldRuns(context.Context) bool { return f.firewalld }

func (f fakeNetfilter) All() []netfilter.Tables { return []netfilter.Tables{f} }

func (f fakeNetfilter) Select(context.Context, string) (netfilter.Tables, netfilter.Choice, error) {
	return f, netfilter.Choice{}, nil
}

func (fakeNetfilter) Name() string { return netfilter.NameIPTables }

// A port that is open to all clients differs from a configuration with
// conditions, although eBPF does not understand these.
func TestCheckOfUnknownConditions(t *testing.T) {
	n := newNode(t)
	open, existing := plugintest.Openers(n.dp)
	n.Plugin = New(Deps{
		Opener: Opener{Open: open, OpenExisting: existing}, Resolve: plugintest.Resolve, Records: n.Records,
		Netfilter: func(*cniskel.Args) (Netfilter, error) { return fakeNetfilter{}, nil },
	})
	n.MustAdd("a", withPrev("", web))
	if err := n.Plugin.Check(t.Context(), n.Args("a", withPrev("", web))); err != nil {
		t.Fatal(err)
	}
	conf := withPrev(`"conditionsV4":["-m","x"],"conditionsV6":["-m","x"]`, web)
	n.WantCode(n.Plugin.Check(t.Context(), n.Args("a", conf)), cnierr.CodeCheck)
}

// eBPF never prepares a port whose conditions it does not understand: the port
// would be open to all clients.
func TestPrepareOfUnknownConditions(t *testing.T) {
	n := newNode(t)
	_, err := n.Add("a", withPrev(`"backend":"ebpf","conditionsV4":["-m","x"]`, web))
	n.WantCode(err, cnierr.CodeUnsupported)
	n.wantEmpty()
}
