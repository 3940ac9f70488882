// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"os"
	"strings"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeid"
)

// FQModule exists while the qdisc's module is loaded. A kernel that has it built in may lack the directory.
const FQModule = "/sys/module/sch_fq"

// HasFQ reports whether the kernel has the qdisc that honours departure times (sch_fq); if not, why.
//
// To ask takes a network namespace, a millisecond, and a run of modprobe where there is no module. So the answer is noted, that of the load
// too. A yes holds until the next boot. A no holds for RefusalAge, or until the module is loaded.
func HasFQ(t *pintree.Tree) (bool, string) {
	if st, err := ReadDecision(t); err == nil && probes(st.Probes).yes(ProbeFQ) {
		return true, ""
	}
	if why, ok := notedFQ(t); ok {
		return why == "", why
	}
	err := askFQ()
	if err == nil {
		noteFQ(t, "")
		return true, ""
	}
	if errors.As(err, new(loadapi.UnsupportedError)) { // else this process may not ask
		noteFQ(t, err.Error())
	}
	return false, err.Error()
}

// notedFQ returns what the last noteFQ wrote, if that still holds.
func notedFQ(t *pintree.Tree) (why string, ok bool) {
	raw, err := os.ReadFile(t.Paths.FQ)
	if err != nil {
		return "", false
	}
	text, whole := strings.CutSuffix(string(raw), "\n") // the last byte that is written
	boot, why, named := strings.Cut(text, " ")
	if !whole || !named || boot != nodeid.BootID() {
		return "", false
	}
	if why == "" {
		return "", true
	}
	info, err := os.Stat(t.Paths.FQ)
	if err != nil {
		return "", false
	}
	return why, believed(info.ModTime()) && !pintree.Exists(FQModule)
}

// noteFQ writes the answer down: empty for yes, else why not. The writers' lock is not held: of two that write at a time both have asked.
func noteFQ(t *pintree.Tree, why string) {
	if err := os.WriteFile(t.Paths.FQ, []byte(nodeid.BootID()+" "+strings.ReplaceAll(why, "\n", " ")+"\n"), 0o644); err != nil { //nolint:gosec // no secret
		t.Log.Debug("the next limit asks for sch_fq again", log.Error(err))
	}
}
