// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// refusalAge bounds how long a no of this kernel is believed: somebody may have loaded a module or lifted a restriction.
const refusalAge = 5 * time.Minute

// cachedRefusal returns the no that was written down a short while ago for the same question, nil if there is none: every ADD of a
// node without eBPF would load and drop programs only to hear it again. What depends on the process or on mounts, and costs
// nothing, is asked anew.
func (d *Datapath) cachedRefusal(k constants) error {
	s, err := d.readState()
	if err != nil || s.Backend != backendNone || s.Kernel != bpfsys.KernelRelease() || s.Asked != d.probeKey(k) {
		return nil //nolint:nilerr // then it is asked
	}
	if age := time.Since(s.Decided); age < 0 || age > refusalAge {
		return nil
	}
	again := map[string]func() error{probeCaps: askCapabilities, probeBPFFS: func() error { return d.tree.Paths.Bpffs.Ensure(d.tree.RunDir) }}
	for _, p := range probes(s.Probes).missing() {
		if ask, ok := again[p.Name]; ok && !errors.As(ask(), new(loadapi.UnsupportedError)) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, s.Reason)
}

// probeKey names what a decision was about: the programs, and what else of the configuration can make the kernel refuse them.
func (d *Datapath) probeKey(k constants) string {
	return fmt.Sprintf("%s %s %v", k.build(), d.tree.Paths.Bpffs.Dir, d.tree.Config.MapSizes)
}
