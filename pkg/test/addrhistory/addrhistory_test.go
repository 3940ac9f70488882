// SPDX-License-Identifier: Apache-2.0

package addrhistory

import (
	"net/netip"
	"testing"
	"time"
)

// An order that fits is found, and a history without one is refused.
func TestOK(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr("10.0.0.1")
	type call struct {
		take       bool
		pod        string
		begin, end int64
	}
	for name, tc := range map[string]struct {
		calls []call
		want  bool
	}{
		"one after the other":            {[]call{{true, "p", 1, 2}, {false, "p", 3, 4}, {true, "q", 5, 6}}, true},
		"the answer of a DEL comes late": {[]call{{true, "p", 1, 2}, {false, "p", 3, 9}, {true, "q", 5, 6}}, true},
		"two have it":                    {[]call{{true, "p", 1, 2}, {true, "q", 3, 4}}, false},
		"two take it at a time":          {[]call{{true, "p", 1, 9}, {true, "q", 2, 8}, {false, "p", 10, 11}}, false},
		"taken before the DEL has begun": {[]call{{true, "p", 1, 2}, {true, "q", 3, 4}, {false, "p", 5, 6}}, false},
		"released by one who has it not": {[]call{{true, "p", 1, 2}, {false, "q", 3, 4}}, false},
	} {
		var now int64
		h := &History{Now: func() int64 { return now }}
		for _, c := range tc.calls {
			if now = c.end; c.take {
				h.Took(a, c.pod, c.begin)
			} else {
				h.Released(a, c.pod, c.begin)
			}
		}
		if got := h.OK(time.Minute); got != tc.want || h.Len() != len(tc.calls) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
