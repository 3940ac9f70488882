// SPDX-License-Identifier: Apache-2.0

package cniplugin

import (
	"bytes"
	"net"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
)

// fill sets every field, also those that a later version of the library adds.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case net.IP:
		v.Set(reflect.ValueOf(net.ParseIP("fd00::1")))
		return
	case net.IPNet:
		v.Set(reflect.ValueOf(net.IPNet{IP: net.IP{10, 1, 0, 2}, Mask: net.CIDRMask(16, 32)}))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.String:
		v.SetString(`ü<&>"\` + "\n")
	case reflect.Int:
		v.SetInt(1500)
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

func TestPrintResult(t *testing.T) {
	t.Parallel()
	var full types100.Result
	fill(reflect.ValueOf(&full).Elem())
	zero := 0
	tests := []struct {
		name string
		r    types.Result
	}{
		{"everything", &full},
		{"nothing", &types100.Result{}},
		{"empty parts", &types100.Result{
			CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{}}, IPs: []*types100.IPConfig{{}}, Routes: []*types.Route{{}},
		}},
		{"zero is a number", &types100.Result{
			CNIVersion: "1.0.0", IPs: []*types100.IPConfig{{Interface: &zero}}, Routes: []*types.Route{{Table: &zero, Scope: &zero}},
		}},
		{"empty lists", &types100.Result{Interfaces: []*types100.Interface{}, Routes: []*types.Route{}, DNS: types.DNS{Search: []string{}}}},
		{"IPv4 as IPv6", &types100.Result{IPs: []*types100.IPConfig{{Gateway: net.ParseIP("10.1.0.1")}}}},
		{"null", &types100.Result{Interfaces: []*types100.Interface{nil}}},
		{"no family's address", &types100.Result{IPs: []*types100.IPConfig{{Gateway: net.IP{1, 2, 3}}}}},
		{"of an old version", &types040.Result{CNIVersion: "0.4.0", Interfaces: []*types040.Interface{{Name: "eth0"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var want, got bytes.Buffer
			werr, gerr := tt.r.PrintTo(&want), printResult(&got, tt.r)
			if d := cmp.Diff(want.String(), got.String()); d != "" || (werr == nil) != (gerr == nil) {
				t.Errorf("error %v, want %v; (-want +got):\n%s", gerr, werr, d)
			}
		})
	}
}
