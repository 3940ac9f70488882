// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// keepGoFolders keeps the caches of Go when HOME changes.
func keepGoFolders(t *testing.T) {
	t.Helper()
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY"} {
		value, err := command("go", "env", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(name, strings.TrimSpace(value))
	}
}

// unmask sets the umask until the returned function runs.
func unmask(mask int) (back func()) {
	old := unix.Umask(mask)
	return func() { unix.Umask(old) }
}
