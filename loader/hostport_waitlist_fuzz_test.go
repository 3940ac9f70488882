// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// A waiting hostPort on disk may be anything: it is dropped, or comes back as it was. It never stops pods.
func FuzzWaitlist(f *testing.F) {
	key := hostport.Key{HostIP: netip.MustParseAddr("192.0.2.1"), Proto: 6, Port: 8080}
	m := hostport.Mapping{Key: key, PodIP: netip.MustParseAddr("10.1.0.2"), PodPort: 80, SNAT: true}
	m.Conditions.Source = netip.MustParsePrefix("198.51.100.0/24")
	text, err := json.Marshal([]hostport.Entry{{Mapping: m, Owner: 7, Generation: 9}})
	if err != nil {
		f.Fatal(err)
	}
	for _, odd := range append(fuzztest.Odd(f, string(text)), string(text), "", "[", "[{}]", "[null]") {
		f.Add([]byte(odd))
	}
	file := filepath.Join(f.TempDir(), "waiting")
	d := &Datapath{&pintree.Tree{Log: log.NewNop(), Paths: pintree.Paths{Waiting: file}}}
	read := func(t *testing.T) []hostport.Entry {
		t.Helper()
		l, err := d.waitlist()
		if err != nil {
			t.Fatalf("a list that does not parse stops pods: %v", err)
		}
		return l.all
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var before []hostport.Entry
		fuzztest.Bounded(t, len(text), func() { before = read(t) })
		again, err := json.Marshal(before)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, again, 0o600); err != nil {
			t.Fatal(err)
		}
		if after := read(t); !slices.EqualFunc(before, after, hostport.Entry.Equal) {
			t.Errorf("%+v became %+v", before, after)
		}
	})
}
