// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"
)

// An offset that is read is written as whereabouts writes it, and the ID of a node is what it was read from: a pod of
// whereabouts is never taken for a node.
func FuzzParseEntry(f *testing.F) {
	for _, id := range []string{"", "sluice/n/m.b.x", "sluice/a/b/m.b.x", "sluice//..", "sluice/", "sluice/n/m.b", "0123abcd", "sluice/n/m.b.x.y"} {
		f.Add("7", id, "10.0.0.0/24")
	}
	for _, key := range []string{"", "-1", "+7", "007", "18446744073709551615", "9223372036854775807", "9223372036854775808", "1e3", " 1"} {
		f.Add(key, "c", "10.0.0.0/24")
	}
	for _, r := range []string{"fd00::/64", "::/0", "10.0.0.1/24", "x", "10.0.0.0/33", "::ffff:10.0.0.0/120"} {
		f.Add("1", "c", r)
	}
	f.Fuzz(func(t *testing.T, key, id, cidr string) {
		if n, ok := ParseNodeID(id); ok && (n.String() != id || !strings.HasPrefix(id, nodePrefix)) {
			t.Errorf("%q is read as %q", id, n)
		}
		o := Object{Name: "p", Range: cidr, Allocations: map[string]Entry{key: {ID: id, PodRef: "a/b"}}}
		taken, err := o.Taken()
		if err != nil && !strings.Contains(err.Error(), "pool p") {
			t.Errorf("the error does not name the pool: %v", err)
		}
		for off, e := range taken {
			if back, err := ParseKey(Key(off)); err != nil || back != off || e.ID != id {
				t.Errorf("the key %q is offset %d, which is read as %d: %v", key, off, back, err)
			}
		}
		p, err := o.Prefix()
		if err != nil {
			return
		}
		for off := range taken {
			if a, ok := Addr(p, off); ok {
				if back, in := Offset(p, a); !p.Contains(a) || !in || back != off {
					t.Errorf("offset %d of %s is %s, whose offset is %d", off, p, a, back)
				}
			}
		}
	})
}
