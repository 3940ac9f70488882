// SPDX-License-Identifier: Apache-2.0

// Package servertest runs a server of a package for one of its tests, and ends it with the test.
package servertest

import (
	"context"
	"testing"
)

// Run calls run, which must return nil when its context ends. It is waited for at the end of the test.
func Run(t testing.TB, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
