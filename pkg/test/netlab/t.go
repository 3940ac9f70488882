// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"strings"
	"testing"
)

// NewT is New for tests: the first Options, if any, is used, an error ends the
// test, and the lab goes with it.
func NewT(t testing.TB, o ...Options) *Lab {
	t.Helper()
	var opts Options
	if len(o) > 0 {
		opts = o[0]
	}
	l, err := New(opts)
	if err != nil {
		t.Fatalf("make lab: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}

// PodT is NewPod for tests; the pod goes with the test.
func (n *Node) PodT(t testing.TB, name string) *Pod {
	t.Helper()
	p, err := n.NewPod(name)
	if err != nil {
		t.Fatalf("make pod: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Delete(); err != nil {
			t.Errorf("delete pod: %v", err)
		}
	})
	return p
}

// IPT runs an ip(8) command line inside the namespace and returns what it prints; a failure ends the test.
func (n *NS) IPT(t testing.TB, line string) string {
	t.Helper()
	var out string
	if err := n.Do(func() (err error) {
		out, err = Run("ip", strings.Fields(line)...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}
