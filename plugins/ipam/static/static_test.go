// SPDX-License-Identifier: Apache-2.0

package static

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

// call makes a call with the keys of ipam and of the configuration around it.
func call(version, ipam, more, cniArgs string) *cniskel.Args {
	if more != "" {
		more = "," + more
	}
	conf := fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"bridge","ipam":{"type":"static"%s}%s}`, version, ipam, more)
	return &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{
		ContainerID: "c", IfName: "eth0", Netns: "/ns", Args: cniArgs, StdinData: []byte(conf),
	}}
}

// list is a result's addresses as text: "address gateway".
func list(t *testing.T, res types.Result) []string {
	t.Helper()
	r, err := types100.NewResultFromResult(res)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, ip := range r.IPs {
		s := ip.Address.String()
		if ip.Gateway != nil {
			s += " " + ip.Gateway.String()
		}
		out = append(out, s)
	}
	return out
}

const two = `,"addresses":[{"address":"10.1.0.5/16","gateway":"10.1.0.1"},{"address":"fd00::5/64","gateway":"fd00::1"}]`

func TestAddresses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, ipam, more, args string
		want                   []string
	}{
		{"configured", two, "", "", []string{"10.1.0.5/16 10.1.0.1", "fd00::5/64 fd00::1"}},
		{"without gateway", `,"addresses":[{"address":"10.1.0.5/16"}]`, "", "", []string{"10.1.0.5/16"}},
		{"gateway outside of the subnet", `,"addresses":[{"address":"10.1.0.5/32","gateway":"169.254.1.1"}]`, "", "", []string{"10.1.0.5/32 169.254.1.1"}},
		{"keys in another case", `,"Addresses":[{"ADDRESS":"10.1.0.5/16","Gateway":"10.1.0.1"}]`, "", "", []string{"10.1.0.5/16 10.1.0.1"}},
		{"CNI_ARGS alone", "", "", "IP=10.2.0.7/24,fd02::7/64;GATEWAY=10.2.0.1,fd02::1", []string{"10.2.0.7/24 10.2.0.1", "fd02::7/64 fd02::1"}},
		{"CNI_ARGS behind the configuration", two, "", "IP=10.2.0.7/24", []string{"10.1.0.5/16 10.1.0.1", "fd00::5/64 fd00::1", "10.2.0.7/24"}},
		{"GATEWAY goes to every subnet of IP that has it", "", "", "IP=10.1.0.5/16,10.1.1.5/24;GATEWAY=10.1.1.254", []string{"10.1.0.5/16 10.1.1.254", "10.1.1.5/24 10.1.1.254"}},
		{"GATEWAY leaves configured addresses alone", `,"addresses":[{"address":"10.1.0.5/16","gateway":"10.1.0.1"},{"address":"10.1.1.5/24"}]`, "",
			"IP=10.1.1.6/24;GATEWAY=10.1.1.254", []string{"10.1.0.5/16 10.1.0.1", "10.1.1.5/24", "10.1.1.6/24 10.1.1.254"}},
		{"GATEWAY before IP", "", "", "GATEWAY=10.2.0.1;IP=10.2.0.7/24", []string{"10.2.0.7/24 10.2.0.1"}},
		{"GATEWAY of no subnet", `,"addresses":[{"address":"10.1.0.5/16"}]`, "", "GATEWAY=10.9.0.1", []string{"10.1.0.5/16"}},
		{"empty CNI_ARGS values", two, "", "IP=;GATEWAY=", []string{"10.1.0.5/16 10.1.0.1", "fd00::5/64 fd00::1"}},
		{"args.cni.ips replaces", two, `"args":{"cni":{"ips":["10.3.0.2/24"]}}`, "IP=10.2.0.7/24;GATEWAY=10.3.0.1", []string{"10.3.0.2/24"}},
		{"an empty args.cni.ips does not", two, `"args":{"cni":{"ips":[]}}`, "", []string{"10.1.0.5/16 10.1.0.1", "fd00::5/64 fd00::1"}},
		{"runtimeConfig.ips replaces that again", two, `"args":{"cni":{"ips":["10.3.0.2/24"]}},"runtimeConfig":{"ips":["10.4.0.2/24","fd04::2/64"]}`,
			"", []string{"10.4.0.2/24", "fd04::2/64"}},
		{"what args.cni.ips replaces need not be valid", `,"addresses":[{"address":"x","gateway":"y"}]`, `"args":{"cni":{"ips":["10.3.0.2/24"]}}`, "", []string{"10.3.0.2/24"}},
		{"nor what runtimeConfig.ips replaces", `,"addresses":[{"gateway":"y"}]`, `"runtimeConfig":{"ips":["10.3.0.2/24"]}`, "", []string{"10.3.0.2/24"}},
		{"an address as the reference's structure encodes it", `,"addresses":[{"address":"10.1.0.5/16","Address":{"IP":"10.1.0.5","Mask":"//8AAA=="}}]`, "", "", []string{"10.1.0.5/16"}},
		{"CNI_ARGS of the interface plugin", two, "", "MAC=aa:bb:cc:dd:ee:ff", []string{"10.1.0.5/16 10.1.0.1", "fd00::5/64 fd00::1"}},
		{"foreign CNI_ARGS with IgnoreUnknown", two, "", "IgnoreUnknown=1;K8S_POD_NAME=p", []string{"10.1.0.5/16 10.1.0.1", "fd00::5/64 fd00::1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res, err := New().Add(context.Background(), call("1.1.0", tt.ipam, tt.more, tt.args))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, list(t, res)); d != "" {
				t.Errorf("addresses (- want, + got):\n%s", d)
			}
		})
	}
}

// Routes with all their attributes and the DNS settings go to the result as
// they are; two routes to one destination are two routes.
func TestRoutesAndDNS(t *testing.T) {
	t.Parallel()
	res, err := New().Add(context.Background(), call("1.1.0", two+`,
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.1.0.9"},{"dst":"10.9.0.0/16","gw":"10.1.0.8","mtu":1400,"advmss":1360,"priority":7,"table":99,"scope":0}],
		"dns":{"nameservers":["10.1.0.1"],"domain":"d","search":["s"],"options":["o"]}`, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"routes": []any{
			map[string]any{"dst": "0.0.0.0/0"},
			map[string]any{"dst": "10.9.0.0/16", "gw": "10.1.0.9"},
			map[string]any{"dst": "10.9.0.0/16", "gw": "10.1.0.8", "mtu": 1400., "advmss": 1360., "priority": 7., "table": 99., "scope": 0.},
		},
		"dns": map[string]any{"nameservers": []any{"10.1.0.1"}, "domain": "d", "search": []any{"s"}, "options": []any{"o"}},
	}
	for key, w := range want {
		if d := cmp.Diff(w, got[key]); d != "" {
			t.Errorf("%s (- want, + got):\n%s", key, d)
		}
	}
}

// wantError wants a CNI error of that code whose text has every word.
func wantError(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	var e *cnierr.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("error %v, want code %d", err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not name %s", err, w)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	const v11 = "1.1.0"
	tests := []struct {
		name, version, ipam, more, args string
		code                            uint
		words                           []string
	}{
		{"no address at all", v11, "", "", "", 7, []string{"ipam.addresses", "runtimeConfig.ips"}},
		{"not CIDR", v11, `,"addresses":[{"address":"10.1.0.5"}]`, "", "", 7, []string{"ipam.addresses[0].address", `"10.1.0.5"`, "CIDR"}},
		{"second entry wrong", v11, `,"addresses":[{"address":"10.1.0.5/16"},{"address":"x"}]`, "", "", 7, []string{"ipam.addresses[1].address", `"x"`}},
		{"no address in an entry", v11, `,"addresses":[{"gateway":"10.1.0.1"}]`, "", "", 7, []string{"ipam.addresses[0].address"}},
		{"gateway", v11, `,"addresses":[{"address":"10.1.0.5/16","gateway":"10.1.0"}]`, "", "", 7, []string{"ipam.addresses[0].gateway", `"10.1.0"`}},
		{"gateway with a zone", v11, `,"addresses":[{"address":"fd00::5/64","gateway":"fe80::1%eth0"}]`, "", "", 7, []string{"gateway", "zone"}},
		{"gateway of the other family", v11, `,"addresses":[{"address":"10.1.0.5/16","gateway":"fd00::1"}]`, "", "", 7, []string{"10.1.0.5/16", "fd00::1"}},
		{"type of a key", v11, `,"addresses":"10.1.0.5/16"`, "", "", 6, []string{"addresses"}},
		{"route without dst", v11, two + `,"routes":[{"gw":"10.1.0.1"}]`, "", "", 7, []string{"ipam.routes[0].dst"}},
		{"route dst", v11, two + `,"routes":[{"dst":"10.1"}]`, "", "", 7, []string{"ipam.routes[0]", "10.1"}},
		{"CNI_ARGS IP without length", v11, two, "", "IP=10.2.0.7", 4, []string{"IP", "10.2.0.7", "CIDR"}},
		{"CNI_ARGS GATEWAY", v11, two, "", "GATEWAY=10.2", 4, []string{"GATEWAY", "10.2"}},
		{"CNI_ARGS unknown key", v11, two, "", "FOO=bar", 4, []string{"FOO"}},
		{"args.cni.ips", v11, two, `"args":{"cni":{"ips":["10.3.0.2"]}}`, "", 7, []string{"args.cni.ips[0]", "10.3.0.2"}},
		{"runtimeConfig.ips", v11, two, `"runtimeConfig":{"ips":["10.3.0.2/24","y"]}`, "", 7, []string{"runtimeConfig.ips[1]", `"y"`}},
		{"args.cni.ips, replaced", v11, two, `"args":{"cni":{"ips":["10.3.0.2"]}},"runtimeConfig":{"ips":["10.3.0.2/24"]}`, "", 7, []string{"args.cni.ips[0]"}},
		{"CNI_ARGS IP, replaced", v11, two, `"runtimeConfig":{"ips":["10.3.0.2/24"]}`, "IP=x", 4, []string{"IP=x"}},
		{"runtimeConfig.ips of another type", v11, two, `"runtimeConfig":{"ips":"y"}`, "", 6, []string{"ips"}},
		{"the same address twice", v11, two, "", "IP=10.1.0.5/24", 7, []string{"10.1.0.5/24", "twice"}},
		{"unspecified", v11, `,"addresses":[{"address":"0.0.0.0/0"}]`, "", "", 7, []string{"0.0.0.0/0"}},
		{"multicast", v11, `,"addresses":[{"address":"ff02::1/64"}]`, "", "", 7, []string{"ff02::1/64"}},
		{"two of a family before 0.3.0", "0.2.0", `,"addresses":[{"address":"10.1.0.5/16"},{"address":"10.2.0.5/16"}]`, "", "", 7, []string{"0.2.0", "family"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := New().Add(context.Background(), call(tt.version, tt.ipam, tt.more, tt.args))
			wantError(t, err, tt.code, tt.words...)
		})
	}
	_, err := New().Add(context.Background(), &cniskel.Args{CmdArgs: cniskel.CmdArgs{StdinData: []byte(`{"name":"n"}`)}})
	wantError(t, err, 7, `"ipam"`)
}

// Every version gets the result it knows.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		res, err := New().Add(context.Background(), call(v, two, "", ""))
		if err != nil || res.Version() != v {
			t.Errorf("%s: result %v, error %v", v, res, err)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	prev := func(ips string) string { return `"prevResult":{"cniVersion":"1.1.0","ips":[` + ips + `]}` }
	const (
		v4 = `{"address":"10.1.0.5/16","gateway":"10.1.0.1"}`
		v6 = `{"address":"fd00::5/64","gateway":"fd00::1"}`
	)
	tests := []struct {
		name, ipam, prev string
		code             uint
		words            []string
	}{
		{"as added", two, prev(v4 + "," + v6), 0, nil},
		{"other addresses too", two, prev(v4 + "," + v6 + `,{"address":"10.9.0.1/24"}`), 0, nil},
		{"gateway filled in by the interface plugin", `,"addresses":[{"address":"10.1.0.5/16"}]`, prev(v4), 0, nil},
		{"missing address", two, prev(v4), 102, []string{"fd00::5/64"}},
		{"other gateway", two, prev(`{"address":"10.1.0.5/16","gateway":"10.1.0.2"},` + v6), 102, []string{"10.1.0.2", "10.1.0.1"}},
		{"no gateway", two, prev(`{"address":"10.1.0.5/16"},` + v6), 102, []string{"10.1.0.1"}},
		{"other length", two, prev(`{"address":"10.1.0.5/24","gateway":"10.1.0.1"},` + v6), 102, []string{"24"}},
		{"no prevResult", two, "", 7, []string{"prevResult"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := New().Check(context.Background(), call("1.1.0", tt.ipam, tt.prev, ""))
			if tt.code == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, tt.code, tt.words...)
		})
	}
}

func TestStatusAndDel(t *testing.T) {
	t.Parallel()
	p := New()
	if err := p.Status(context.Background(), call("1.1.0", "", "", "")); err != nil {
		t.Errorf("STATUS where the runtime gives the addresses: %v", err)
	}
	wantError(t, p.Status(context.Background(), call("1.1.0", `,"addresses":[{"address":"x"}]`, "", "")), cnierr.CodeUnavailable, "ipam.addresses[0].address")
	placeholder := call("1.1.0", `,"addresses":[{"address":"x"}]`, `"capabilities":{"ips":true}`, "")
	placeholder.ContainerID = "" // as in STATUS
	if err := p.Status(context.Background(), placeholder); err != nil {
		t.Errorf("STATUS where the runtime gives the addresses instead of a placeholder: %v", err)
	}
	for _, verb := range []func(context.Context, *cniskel.Args) error{p.Del, p.Del, p.GC} {
		if err := verb(context.Background(), call("1.1.0", `,"addresses":"whatever"`, "", "x")); err != nil {
			t.Errorf("DEL or GC with a wrong configuration: %v", err)
		}
	}
}

// As in upstream, a list may have spaces after its commas.
func TestSpacesInArgs(t *testing.T) {
	t.Parallel()
	a := call("1.0.0", "", "", "IP=10.10.0.1/24, 11.11.0.1/24;GATEWAY=10.10.0.254, 11.11.0.254")
	res, err := add(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(list(t, res), ";"); got != "10.10.0.1/24 10.10.0.254;11.11.0.1/24 11.11.0.254" {
		t.Error(got)
	}
}
