// SPDX-License-Identifier: Apache-2.0

package attach

import "testing"

// A place that is read is written as the same place.
func FuzzPlace(f *testing.F) {
	f.Add(Place{Inode: 4026531840, Ifindex: 7, Made: true, Netns: "/run/netns/a b"}.String())
	f.Add("1 2 true")
	f.Add("1 2 maybe /x")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlace(text)
		if err != nil {
			return
		}
		if again, err := parsePlace(p.String()); err != nil || again != p {
			t.Errorf("%q became %q: %v", text, p, err)
		}
	})
}
