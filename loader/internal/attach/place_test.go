// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"testing"
)

func TestPlace(t *testing.T) {
	want := Place{Inode: 4026532, Ifindex: 7, Made: true, Netns: "/var/run/netns/with blank"}
	if got, err := parsePlace(want.String()); err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
	for _, s := range []string{"", "1 2 true", "x 2 true /a", "1 x true /a", "1 2 maybe /a"} {
		if _, err := parsePlace(s); err == nil {
			t.Errorf("%q: no error", s)
		}
	}
}
