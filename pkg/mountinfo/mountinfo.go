// SPDX-License-Identifier: Apache-2.0

// Package mountinfo decodes fields of /proc/PID/mountinfo. The loader and sluice cleanup use it to find mounts.
// It reads no file itself, and imports no other package of Sluice.
package mountinfo

import "strings"

// Unescape decodes a path of /proc/PID/mountinfo. The kernel writes space, tab, newline and backslash in octal
// (show_mountinfo, fs/proc_namespace.c).
func Unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
