// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// The constant is the hash of what is embedded, of all of it: a program that is
// changed without it would be taken for the one that is pinned already.
func TestBuild(t *testing.T) {
	embedded := [][]byte{
		_EdtBytes, _FromPodBytes, _FromUplinkBytes, _MACCheckBytes, _NsEgressBytes, _NsIngressBytes, _ParentBytes,
		_SockLBBytes, _ToPodBytes, _ToUplinkBytes, _XDPDenylistBytes,
	}
	h := sha256.New()
	for _, object := range embedded {
		h.Write(object)
	}
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != bpfgen.Build {
		t.Errorf("Build is %s, the objects' hash is %s: run make generate", bpfgen.Build, got)
	}
	files, err := filepath.Glob("*_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(embedded) {
		t.Errorf("%d objects, %d of them in this test: %v", len(files), len(embedded), files)
	}
}
