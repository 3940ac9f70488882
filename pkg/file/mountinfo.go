// SPDX-License-Identifier: Apache-2.0

package file

import "strings"

// Unescape undoes what the kernel does to a path in /proc/PID/mountinfo, whose lines some characters would break
// (show_mountinfo, fs/proc_namespace.c).
func Unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
