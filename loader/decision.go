// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// state is the decision taken for a network namespace, kept for the operator, and for the ADDs that follow a no. What is
// loaded and attached is told by the pins.
type state struct {
	Version int          `json:"version"`
	BootID  string       `json:"bootID"`
	Decided time.Time    `json:"decided"`
	Kernel  string       `json:"kernel"`
	Backend string       `json:"backend"` // "ebpf", or "none" when it cannot run
	Reason  string       `json:"reason"`
	Asked   string       `json:"asked,omitempty"` // of a no: what it was about
	Build   string       `json:"build,omitempty"`
	Attach  AttachModes  `json:"attach,omitzero"`
	Probes  []Probe      `json:"probes"`
	Config  ConfigStatus `json:"config,omitzero"`
}

const (
	stateVersion = 1

	backendEBPF = "ebpf"
	backendNone = "none"
)

func (p paths) readState() (*state, error) {
	raw, err := os.ReadFile(p.state)
	if err != nil {
		return nil, err
	}
	s := new(state)
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("%s: %w", p.state, err)
	}
	if s.BootID != bootID() {
		return nil, fmt.Errorf("%s: of an earlier boot", p.state)
	}
	return s, nil
}

// writeState replaces the file atomically; the run directory is a tmpfs, so nothing is synced.
func (p paths) writeState(s *state) error {
	s.Version, s.BootID, s.Decided, s.Kernel = stateVersion, bootID(), time.Now().UTC(), bpfsys.KernelRelease()
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(p.state, append(raw, '\n'))
}

// writeFile replaces a file of the run directory in one step.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".tmp" // the writers' lock is held: nobody else uses the name
	err := os.WriteFile(tmp, content, 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // where there is no room, half a file must not take the rest of it
	}
	return err
}

func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
