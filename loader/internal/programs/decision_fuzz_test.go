// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/nodeid"
)

// The decision is read from a file that may be of another build or damaged. It never stops a process, one of another boot never counts,
// and what is read is what is written back.
func FuzzReadDecision(f *testing.F) {
	boot := nodeid.BootID()
	f.Add([]byte(fmt.Sprintf(`{"version":1,"bootID":%q,"backend":"ebpf","build":"0123456789abcdef","probes":[{"name":"tcx links","answer":"yes"}]}`, boot)))
	f.Add([]byte(fmt.Sprintf(`{"BOOTID":%q,"probes":[{"required":true,"answer":"no"},{}],"config":{"snatPorts":[""]}}`, boot)))
	f.Add([]byte(`{"bootID":"another"}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[{}]`))
	f.Add([]byte(``))
	f.Add([]byte(`{"probes":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		tree := &pintree.Tree{Paths: pintree.Paths{State: path}}
		read, err := ReadDecision(tree)
		if err != nil {
			return
		}
		if read == nil || read.BootID != boot {
			t.Fatalf("%q is a decision of this boot: %+v", raw, read)
		}
		probes(read.Probes).missing()
		_ = probes(read.Probes).Reason()
		written := *read
		if err := WriteDecision(tree, &written); err != nil {
			t.Fatal(err)
		}
		again, err := ReadDecision(tree)
		if err != nil {
			t.Fatalf("%q cannot be read back: %v", raw, err)
		}
		if len(again.Probes) != len(read.Probes) || len(read.Probes) > 0 && !reflect.DeepEqual(again.Probes, read.Probes) || again.Build != read.Build || again.Backend != read.Backend {
			t.Errorf("%q: %+v, then %+v", raw, read, again)
		}
	})
}
