// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// WriteFile replaces a file of the run directory in one step.
func WriteFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".tmp" // the writers' lock is held: no other process uses the name
	err := os.WriteFile(tmp, content, 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // where there is no room, half a file must not take the rest of it
	}
	return err
}

// BootID is the kernel's name of this boot; empty where it cannot be read.
var BootID = sync.OnceValue(func() string { //nolint:gochecknoglobals // a process lives in one boot
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
})
