// SPDX-License-Identifier: Apache-2.0

package ipproto

import (
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	t.Parallel()
	numbers := map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmp6": 58}
	for name, number := range numbers {
		if Name(number) != name || Number(name) != number {
			t.Errorf("%d is %q, %q is %d", number, Name(number), name, Number(name))
		}
		if want := slices.Contains([]string{"tcp", "udp", "sctp"}, name); HasPorts(number) != want {
			t.Errorf("%s: ports %t", name, !want)
		}
	}
	if got := Names(); len(got) != len(numbers) {
		t.Errorf("got %q", got)
	}
	if got := Name(89); got != "89" || Number(got) != 0 || HasPorts(0) {
		t.Errorf("a protocol without a name: %q", got)
	}
}
