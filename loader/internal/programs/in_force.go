// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// LoadRequest returns by what the set of programs in force was made, for a copy of it: its constants, and where its maps are pinned. The
// error says what to do where this build or the present configuration is not that of the set.
func LoadRequest(t *pintree.Tree) (loadapi.LoadRequest, error) {
	dir, err := t.CommittedDir()
	if err != nil {
		return loadapi.LoadRequest{}, err
	}
	k, err := ConstantsOf(t)
	if err != nil {
		return loadapi.LoadRequest{}, err
	}
	if id, _ := t.Paths.Committed(); id != k.Build() {
		return loadapi.LoadRequest{}, fmt.Errorf("the programs in the kernel (build %s) are of another release or configuration than this one (build %s): take the tool of that release, or run \"sluice resync\"", id, k.Build())
	}
	consts, err := constsOf(dir)
	if err != nil {
		return loadapi.LoadRequest{}, fmt.Errorf("read the constants of the programs in force: %w", err)
	}
	return loadapi.LoadRequest{Build: bpfgen.Build, Maps: t.Paths.Maps(), Constants: k.compiled(consts)}, nil
}
