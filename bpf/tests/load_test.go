// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
)

// TestPrivilegedLoad puts every shipped object through this kernel's verifier.
func TestPrivilegedLoad(t *testing.T) {
	o := mustLoad(t, loadOptions{})
	for _, p := range o.programs() {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := info.VerifiedInstructions()
		t.Logf("%s: %d instructions verified", info.Name, n)
	}
}

func verifierText(err error) string {
	var ve *ebpf.VerifierError
	if errors.As(err, &ve) {
		n := len(ve.Log)
		if n > 80 {
			ve.Log = ve.Log[n-80:]
		}
		s := err.Error() + "\n"
		for _, l := range ve.Log {
			s += l + "\n"
		}
		return s
	}
	return err.Error()
}

// TestPrivilegedLoadSeams shows that the rewired programs are programs.
func TestPrivilegedLoadSeams(t *testing.T) {
	mustLoad(t, loadOptions{seams: true})
}
