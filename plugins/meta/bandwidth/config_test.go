// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"math"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

func TestParse(t *testing.T) {
	t.Parallel()
	derived := &Limit{Rate: 125_000, Burst: minBurst, Derived: true}
	tests := []struct {
		name, keys      string
		node            string // the node's backend
		ingress, egress *Limit
		backend         string
		subnets         subnets
		code            uint
	}{
		{name: "nothing", backend: "auto"},
		{name: "zeros", keys: `"ingressRate":0,"ingressBurst":0`, backend: "auto"},
		{name: "both", keys: `"ingressRate":8000,"ingressBurst":80,"egressRate":16000,"egressBurst":800`, backend: "auto",
			ingress: &Limit{Rate: 1000, Burst: 10}, egress: &Limit{Rate: 2000, Burst: 100}},
		{name: "any case", keys: `"IngressRate":8000,"INGRESSBURST":80`, backend: "auto", ingress: &Limit{Rate: 1000, Burst: 10}},
		{name: "runtime", keys: `"runtimeConfig":{"bandWidth":{"egressRate":8000,"egressBurst":80}}`, backend: "auto", egress: &Limit{Rate: 1000, Burst: 10}},
		{name: "static hides runtime", keys: `"ingressRate":8000,"ingressBurst":80,"runtimeConfig":{"bandwidth":{"egressRate":8000,"egressBurst":80}}`,
			backend: "auto", ingress: &Limit{Rate: 1000, Burst: 10}},
		{name: "a static zero hides runtime", keys: `"ingressRate":0,"runtimeConfig":{"bandwidth":{"egressRate":8000,"egressBurst":80}}`, backend: "auto"},
		{name: "no burst", keys: `"ingressRate":1000000`, backend: "auto", ingress: derived},
		{name: "int32", keys: `"ingressRate":1000000,"ingressBurst":2147483647`, backend: "auto", ingress: derived},
		{name: "uint32", keys: `"ingressRate":1000000,"ingressBurst":4294967295`, backend: "auto", ingress: derived},
		{name: "the most that the reference accepts", keys: `"ingressRate":1000000,"ingressBurst":34359738359`, backend: "auto", ingress: derived},
		{name: "a burst of 10 ms", keys: `"egressRate":1000000000`, backend: "auto", egress: &Limit{Rate: 125_000_000, Burst: 1_250_000, Derived: true}},
		{name: "a huge rate", keys: `"egressRate":18446744073709551615`, backend: "auto",
			egress: &Limit{Rate: math.MaxUint64 / 8, Burst: math.MaxUint32 / 2, Derived: true}},
		{name: "burst without rate", keys: `"ingressBurst":80`, code: cnierr.CodeConfig},
		{name: "burst without rate at run time", keys: `"runtimeConfig":{"bandwidth":{"egressBurst":80}}`, code: cnierr.CodeConfig},
		{name: "less than a byte", keys: `"egressRate":7,"egressBurst":80`, code: cnierr.CodeConfig},
		{name: "burst of 4 GB", keys: `"egressRate":8000,"egressBurst":34359738360`, code: cnierr.CodeConfig},
		{name: "negative", keys: `"egressRate":-1`, code: cnierr.CodeDecode},
		{name: "text", keys: `"egressRate":"1M"`, code: cnierr.CodeDecode},
		{name: "tbf", keys: `"backend":"tbf"`, node: "edt", backend: "tbf"},
		{name: "node", node: "edt", backend: "edt"},
		{name: "unknown back end", keys: `"backend":"htb"`, code: cnierr.CodeConfig},
		{name: "unshaped", keys: `"unshapedSubnets":["10.1.2.3/8","fd00::/8"]`, backend: "auto",
			subnets: subnets{Unshaped: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}},
		{name: "shaped at run time", keys: `"runtimeConfig":{"bandwidth":{"shapedSubnets":["10.0.0.0/8"]}}`, backend: "auto",
			subnets: subnets{Shaped: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		{name: "static networks, runtime rates", keys: `"shapedSubnets":["10.0.0.0/8"],"runtimeConfig":{"bandwidth":{"egressRate":8000,"egressBurst":80}}`,
			backend: "auto", egress: &Limit{Rate: 1000, Burst: 10}, subnets: subnets{Shaped: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		{name: "both lists", keys: `"unshapedSubnets":["10.0.0.0/8"],"shapedSubnets":["11.0.0.0/8"]`, code: cnierr.CodeConfig},
		{name: "no CIDR", keys: `"unshapedSubnets":["10.0.0.0"]`, code: cnierr.CodeConfig},
		{name: "v4 in v6", keys: `"unshapedSubnets":["::ffff:10.0.0.0/104"]`, code: cnierr.CodeConfig},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stdin := `{"cniVersion":"1.1.0","name":"net","type":"bandwidth"`
			if tt.keys != "" {
				stdin += "," + tt.keys
			}
			r, err := parse([]byte(stdin+"}"), tt.node)
			if tt.code != 0 {
				if got := cnierr.From(err); got == nil || got.Code != tt.code {
					t.Fatalf("error %v, want code %d", err, tt.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := []any{r.backend, r.ingress, r.egress, r.subnets}
			want := []any{tt.backend, tt.ingress, tt.egress, tt.subnets}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Numbers of the upstream plugin.
func TestUpstreamValues(t *testing.T) {
	t.Parallel()
	if got, want := *(&Limit{Rate: 1000, Burst: 10}).tbf(), (rtnl.TBF{Rate: 1000, Limit: 35, Buffer: 156250}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := (&Limit{Rate: 625, Burst: 5125}).tbf().Buffer; got != 128_125_000 {
		t.Errorf("buffer %d: not rounded as there", got)
	}
	if got := (&Limit{Rate: 1_000_000, Burst: 100_000}).tbf().Limit; got != 125_000 {
		t.Errorf("limit %d: not 25 ms and the burst", got)
	}
	if got := referenceIFB(attachments.ID{Network: "n1", ContainerID: "ctr1", IfName: "eth0"}); got != "bwpc189d8b6a7b4" {
		t.Errorf("device %s", got)
	}
}

func TestIFBNames(t *testing.T) {
	t.Parallel()
	ref := attachments.ID{Network: "n1", ContainerID: "ctr1", IfName: "eth0"}
	for name, want := range map[string]bool{
		referenceIFB(ref): true, ownIFB(ref): true,
		"bwp": false, "bwpc189d8b6a7bg": false, "bwpc189d8b6a7b": false, "ifb0": false, "vethc189d8b6a7b": false,
	} {
		if isIFBName(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
