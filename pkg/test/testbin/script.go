// SPDX-License-Identifier: Apache-2.0

package testbin

import (
	"os"
	"syscall"
)

// WriteScript writes a file that is executed next. This process forks no other until the file is closed: a child would have it open until
// its own execve, and the kernel refuses to execute a file that is open for writing (ETXTBSY).
func WriteScript(path, content string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(content), 0o755) //nolint:gosec // a program is executable
}
