// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
)

// The denylist is what was added, until it is taken out.
func TestDeny(t *testing.T) {
	n := newFakeNode()
	steps := []struct {
		args, want string
		status     int
	}{
		{"deny list", "203.0.113", 0},
		{"deny add 198.51.100.0/24 2001:db8:bad::/48", "198.51.100.0/24", 0},
		{"deny add 300.1.1.1/8", "300.1.1.1", 1},
		{"deny list", "2001:db8:bad::/48", 0},
		{"deny del 198.51.100.0/24", "198.51.100.0/24", 0},
		{"deny del 198.51.100.0/24", "not in the denylist", 1},
		{"deny list -o json", "2001:db8:bad::/48", 0},
	}
	for _, s := range steps {
		out, errs, status := runTool(t, n, 0, strings.Fields(s.args)...)
		if status != s.status || !strings.Contains(out+errs, s.want) {
			t.Errorf("%s: %d, %q %q, want %d and %q", s.args, status, out, errs, s.status, s.want)
		}
	}
	if out, _, _ := runTool(t, n, 0, "deny", "list"); strings.Contains(out, "198.51.100") {
		t.Errorf("still there:\n%s", out)
	}
}

// "drops --watch" prints the list again and again, until it is interrupted.
func TestDropsWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		a := &app{out: w, err: w, node: newFakeNode()}
		done <- a.run(ctx, []string{"drops", "--watch", "1ms"})
		_ = w.Close()
	}()
	lists, s := 0, bufio.NewScanner(r)
	for s.Scan() {
		if strings.HasPrefix(s.Text(), "spoofed-ip:") {
			if lists++; lists == 3 {
				cancel()
			}
		}
	}
	if status := <-done; status != 0 || lists < 3 {
		t.Errorf("%d lists, status %d", lists, status)
	}
}
