// SPDX-License-Identifier: Apache-2.0

package rollback

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var errAdd = errors.New("add")

func TestRollback(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	tests := []struct {
		name    string
		err     error
		fail    map[string]error
		want    []string
		wantErr []error
	}{
		{name: "success leaves all"},
		{name: "reverse order", err: errAdd, want: []string{"c", "b", "a"}, wantErr: []error{errAdd}},
		{name: "goes on after a failure", err: errAdd, fail: map[string]error{"b": boom}, want: []string{"c", "b", "a"}, wantErr: []error{errAdd, boom}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var ran []string
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			add := func() (err error) {
				var s Stack
				defer s.Rollback(ctx, &err)
				for _, n := range []string{"a", "b", "c"} {
					s.Push(n, func(ctx context.Context) error {
						ran = append(ran, n)
						if ctx.Err() != nil {
							t.Error("the rollback inherited a cancelled context")
						}
						return tc.fail[n]
					})
				}
				return tc.err
			}
			err := add()
			if diff := cmp.Diff(tc.want, ran); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if (err != nil) != (tc.err != nil) {
				t.Errorf("err = %v", err)
			}
			for _, w := range tc.wantErr {
				if !errors.Is(err, w) {
					t.Errorf("err %v does not hold %v", err, w)
				}
			}
		})
	}
}

func TestRollbackOnPanic(t *testing.T) {
	t.Parallel()
	ran := false
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = func() (err error) {
			var s Stack
			defer s.Rollback(context.Background(), &err)
			s.Push("x", func(context.Context) error { ran = true; return nil })
			panic("bug")
		}()
	}()
	if !ran {
		t.Error("a panic did not roll back")
	}
}
