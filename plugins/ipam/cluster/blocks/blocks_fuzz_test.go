// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// A file that is read has claims that can be counted, and is the same after it was written. Of any other the error
// names the file.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":2,"pool":"p","cidr":"10.0.0.0/16","node":"n","machine":"m","boot":"b","claims":[{"id":"sluice/n/m.b.x","runs":[[1,32],[40,40]]}],` +
		`"owed":[{"id":"d","ifname":"eth0"}],"gone":["a"],"last":3}`))
	f.Add([]byte(`{"version":2,"pool":"p","claims":[{"id":"x","runs":[[0,18446744073709551615]]}]}`))
	f.Add([]byte(`{"version":2,"pool":"p","giving":[{"id":"x","runs":[[9,1]]}],"trying":[{"id":"x","runs":[[0,1048575],[0,1048575]]}]}`))
	f.Add([]byte(`{"version":2,"pool":"p","claims":[{"id":"x","runs":[[1,9]]}],"free":[1,2,9]}`))
	f.Add([]byte(`{"version":3}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "p.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		var file *File
		var err error
		fuzztest.Bounded(t, len(text)+maxClaimed, func() {
			if file, err = Open(t.Context(), dir, "", "p"); err == nil {
				_ = file.Due(nil, 32, 0)
			}
		})
		if err != nil {
			return
		}
		defer file.Close()
		before := owned(file)
		if err := file.Save(); err != nil {
			t.Fatalf("save: %v", err)
		}
		file.Close()
		again, err := Open(t.Context(), dir, "", "p")
		if err != nil {
			t.Fatalf("what was saved is not read: %v", err)
		}
		defer again.Close()
		if owned(again) != before {
			t.Errorf("%d offsets, before %d", owned(again), before)
		}
	})
}

// owned counts the offsets of all claims.
func owned(f *File) (n int) {
	for _, c := range f.Claims {
		n += len(c.Offsets())
	}
	return n
}
