// SPDX-License-Identifier: Apache-2.0

package cnierr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

func TestFrom(t *testing.T) {
	t.Parallel()
	config := Config("ipam.ranges[0][0].subnet", "10.0.0.1/24", "host bits are set")
	tests := []struct {
		name string
		err  error
		want *types.Error
	}{
		{"nil", nil, nil},
		{"plain", errors.New("boom"), &types.Error{Code: 100, Msg: "boom"}},
		{"config", config, &types.Error{Code: 7, Msg: `invalid ipam.ranges[0][0].subnet "10.0.0.1/24": host bits are set`}},
		{"unsupported", Unsupported("vlan", 5000, "no such tag"), &types.Error{Code: 2, Msg: "unsupported vlan 5000: no such tag"}},
		{"stringer", Config("gateway", netip.MustParseAddr("::1"), "x"), &types.Error{Code: 7, Msg: `invalid gateway "::1": x`}},
		{"wrapped code", fmt.Errorf("load: %w", New(CodeExhausted, "no free address", "range set 0")),
			&types.Error{Code: 104, Msg: "no free address", Details: "load: no free address (range set 0)"}},
		{"wrap", Wrap(CodeState, fs.ErrPermission, "open store %s", "/x"), &types.Error{Code: 101, Msg: "open store /x", Details: "permission denied"}},
		{"outermost code wins", Wrap(CodeState, New(CodeTryAgain, "inner", ""), "outer"), &types.Error{Code: 101, Msg: "outer", Details: "inner"}},
		{"delegate", fmt.Errorf("ipam: %w", &types.Error{Code: 11, Msg: "later"}), &types.Error{Code: 11, Msg: "later", Details: "ipam: later"}},
		{"delegate 999", &types.Error{Code: 999, Msg: "x", Details: "y"}, &types.Error{Code: 100, Msg: "x", Details: "y"}},
		{"delegate without code", &types.Error{Msg: "x"}, &types.Error{Code: 100, Msg: "x"}},
		{"deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded),
			&types.Error{Code: 11, Msg: "the operation did not finish in time", Details: "wait: context deadline exceeded"}},
		{"join", errors.Join(errors.New("a"), New(CodeConflict, "b", "")), &types.Error{Code: 103, Msg: "b", Details: "a; b"}},
		{"join of one", errors.Join(nil, Wrap(CodeKernel, errors.New("why"), "open")), &types.Error{Code: 100, Msg: "open", Details: "why"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, From(tc.err)); diff != "" {
				t.Errorf("From (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	kept := New(CodeConfig, "x", "")
	for _, tc := range []struct{ err, want error }{{nil, nil}, {kept, kept}, {fs.ErrExist, fs.ErrExist}} {
		if got := Unavailable(tc.err); got != tc.want { //nolint:errorlint // identity is meant
			t.Errorf("%v became %v", tc.err, got)
		}
	}
	for _, code := range []uint{CodeNoDatapath, CodeKernel} {
		inner := New(code, "no back end", "why")
		if got := Unavailable(inner); From(got).Code != CodeUnavailable || From(got).Msg != "no back end" || !errors.Is(got, inner) {
			t.Errorf("%v", got)
		}
	}
}

func TestWrapKeepsChain(t *testing.T) {
	t.Parallel()
	if Wrap(CodeKernel, nil, "x") != nil {
		t.Error("Wrap(nil) is not nil")
	}
	err := Wrap(CodeKernel, fmt.Errorf("a: %w", fs.ErrNotExist), "b")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the wrapped sentinel is unreachable")
	}
	var obj *types.Error
	if !errors.As(err, &obj) || obj.Code != CodeKernel {
		t.Errorf("errors.As to *types.Error gave %+v", obj)
	}
}
