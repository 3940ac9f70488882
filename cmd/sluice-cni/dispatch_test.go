// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"
)

// A runtime that passes no PATH on must not cost us iptables and nft.
func TestEnsurePath(t *testing.T) {
	for in, want := range map[string]string{"": defaultPath, "/opt/bin": "/opt/bin"} {
		t.Setenv("PATH", in)
		if ensurePath(); os.Getenv("PATH") != want {
			t.Errorf("PATH %q became %q", in, os.Getenv("PATH"))
		}
	}
}
