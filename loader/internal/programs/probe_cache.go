// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// RefusalAge bounds how long a no of this kernel is believed: an operator may have loaded a module or lifted a restriction.
const RefusalAge = 5 * time.Minute

// believed reports whether a no of then still holds. One from the future does not: the clock went back.
func believed(then time.Time) bool {
	age := time.Since(then)
	return age >= 0 && age <= RefusalAge
}

// CachedRefusal returns the no that was written down a short while ago for the same question, nil if there is none: every ADD of a
// node without eBPF would load and drop programs only to hear it again. What depends on the process or on mounts, and costs
// nothing, is asked anew.
func CachedRefusal(t *pintree.Tree, k Constants) error {
	s, err := ReadDecision(t)
	if err != nil || s.Backend != BackendNone || s.Kernel != bpfsys.KernelRelease() || s.Asked != ProbeKey(t, k) {
		return nil //nolint:nilerr // then it is asked
	}
	if !believed(s.Decided) {
		return nil
	}
	again := map[string]func() error{ProbeCaps: AskCapabilities, ProbeBPFFS: func() error { return t.Paths.BPFFS.Ensure(t.RunDir) }}
	for _, p := range probes(s.Probes).missing() {
		if ask, ok := again[p.Name]; ok && !errors.As(ask(), new(loadapi.UnsupportedError)) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", pintree.ErrUnavailable, s.Reason)
}

// ProbeKey names what a decision was about: the programs, and what else of the configuration can make the kernel refuse them.
func ProbeKey(t *pintree.Tree, k Constants) string {
	return fmt.Sprintf("%s %s %v", k.Build(), t.Paths.BPFFS.Dir, t.Config.MapSizes)
}
