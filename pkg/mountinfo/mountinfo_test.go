// SPDX-License-Identifier: Apache-2.0

package mountinfo

import "testing"

func TestUnescape(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/sys/fs/bpf": "/sys/fs/bpf", `/a\040b\011c\012d\134e`: "/a b\tc\nd\\e", `/\134040`: `/\040`,
	} {
		if got := Unescape(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
