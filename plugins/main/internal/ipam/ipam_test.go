// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"encoding/json"
	"net"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

func TestWithSection(t *testing.T) {
	got, err := withSection([]byte(`{"name":"n","type":"bridge","x":[1]}`), json.RawMessage(`{"type":"host-local"}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"ipam":{"type":"host-local"},"name":"n","type":"bridge","x":[1]}`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestPrefix(t *testing.T) {
	tests := []struct {
		name string
		n    net.IPNet
		want string // empty: refused
	}{
		{"v4", net.IPNet{IP: net.IP{10, 0, 0, 2}, Mask: net.CIDRMask(24, 32)}, "10.0.0.2/24"},
		{"v4 in 16 bytes", net.IPNet{IP: net.IPv4(10, 0, 0, 2), Mask: net.CIDRMask(24, 32)}, "10.0.0.2/24"},
		{"v4 with a mask of 16 bytes", net.IPNet{IP: net.IPv4(10, 0, 0, 2), Mask: net.CIDRMask(120, 128)}, "10.0.0.2/24"},
		{"v6", net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(64, 128)}, "fd00::2/64"},
		{"v4 with a mask of v6", net.IPNet{IP: net.IPv4(10, 0, 0, 2), Mask: net.CIDRMask(64, 128)}, ""},
		{"v6 with a mask of v4", net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(24, 32)}, ""},
		{"no mask", net.IPNet{IP: net.IP{10, 0, 0, 2}}, ""},
		{"no address", net.IPNet{Mask: net.CIDRMask(24, 32)}, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := Prefix(&tc.n)
			if ok != (tc.want != "") || ok && got.String() != tc.want {
				t.Errorf("%v, %v; want %q", got, ok, tc.want)
			}
		})
	}
}

// fake answers ADD with a result or an error and remembers DELs.
type fake struct {
	res  *types100.Result
	err  error
	dels []string // stdin of each
}

func (f *fake) Add(context.Context, *cniskel.Args, string) (*types100.Result, error) {
	return f.res, f.err
}

func (f *fake) Del(_ context.Context, a *cniskel.Args, _ string) error {
	f.dels = append(f.dels, string(a.StdinData))
	return nil
}
func (f *fake) Check(context.Context, *cniskel.Args, string) error  { return nil }
func (f *fake) GC(context.Context, *cniskel.Args, string) error     { return nil }
func (f *fake) Status(context.Context, *cniskel.Args, string) error { return nil }

// Whatever is wrong with the answer, the address is given back.
func TestAllocateReleases(t *testing.T) {
	tests := []struct {
		name string
		fake *fake
		code uint
	}{
		{"refused", &fake{err: cnierr.New(cnierr.CodeExhausted, "full", "")}, cnierr.CodeExhausted},
		{"no address", &fake{res: &types100.Result{}}, cnierr.CodeConfig},
		{"bad address", &fake{res: &types100.Result{IPs: []*types100.IPConfig{{}}}}, cnierr.CodeDecode},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var rb rollback.Stack
			_, _, err := Allocate(context.Background(), tc.fake, &cniskel.Args{}, "x", &rb)
			if err == nil || cnierr.From(err).Code != tc.code {
				t.Fatalf("%v, want code %d", err, tc.code)
			}
			rb.Rollback(context.Background(), &err)
			if len(tc.fake.dels) != 1 {
				t.Errorf("%d DELs, want 1", len(tc.fake.dels))
			}
		})
	}
}

func TestRelease(t *testing.T) {
	tests := []struct {
		name              string
		stdin             string
		section, recorded string
		want              string // stdin of the DEL; empty: none
	}{
		{"configured", `{"name":"n","ipam":{"type":"a"}}`, `{"type":"a"}`, `{"type":"b"}`, `{"name":"n","ipam":{"type":"a"}}`},
		{"recorded", `{"name":"n"}`, "", `{"type":"b"}`, `{"ipam":{"type":"b"},"name":"n"}`},
		{"recorded, type taken out since", `{"name":"n","ipam":{}}`, "{}", `{"type":"b"}`, `{"ipam":{"type":"b"},"name":"n"}`},
		{"recorded, null since", `{"name":"n","ipam":null}`, "null", `{"type":"b"}`, `{"ipam":{"type":"b"},"name":"n"}`},
		{"recorded, odd since", `{"name":"n","ipam":3}`, "3", `{"type":"b"}`, `{"ipam":{"type":"b"},"name":"n"}`},
		{"none", `{"name":"n"}`, "", "", ""},
		{"odd", `{"name":"n","ipam":3}`, "3", "", ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			f := &fake{}
			a := &cniskel.Args{CmdArgs: cniskel.CmdArgs{StdinData: []byte(tc.stdin)}, Log: log.NewNop()}
			err := Release(context.Background(), f, a, json.RawMessage(tc.section), json.RawMessage(tc.recorded))
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "" && len(f.dels) == 0 {
				return
			}
			if len(f.dels) != 1 || f.dels[0] != tc.want {
				t.Errorf("DELs %q, want %q", f.dels, tc.want)
			}
		})
	}
}
