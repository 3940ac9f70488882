// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// "conntrack relearn --follow" relearns once when it begins, for what has changed before, and ends when it is interrupted.
func TestRelearnFollow(t *testing.T) {
	t.Parallel()
	require.Nfnetlink(t) // it listens to changes of nftables
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		a := &app{out: w, err: w, node: newFakeNode()}
		done <- a.run(ctx, []string{"conntrack", "relearn", "--follow", "--proto", "tcp"})
		_ = w.Close()
	}()
	var lines []string
	for s := bufio.NewScanner(r); s.Scan(); {
		lines = append(lines, s.Text())
		cancel()
	}
	if status := <-done; status != 0 || len(lines) != 1 || !strings.Contains(lines[0], "confirmed again") {
		t.Errorf("status %d, %q", status, lines)
	}
}
