// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/nodeid"
)

// Decision is the decision taken for a network namespace, kept for the operator, and for the ADDs that follow a no. What is
// loaded and attached is told by the pins.
type Decision struct {
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
	BackendNone = "none"
)

// ReadDecision reads the decision. One of an earlier boot is an error.
func ReadDecision(t *pintree.Tree) (*Decision, error) {
	raw, err := os.ReadFile(t.Paths.State)
	if err != nil {
		return nil, err
	}
	s := new(Decision)
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("%s: %w", t.Paths.State, err)
	}
	if s.BootID != nodeid.BootID() {
		return nil, fmt.Errorf("%s: of an earlier boot", t.Paths.State)
	}
	return s, nil
}

// WriteDecision replaces the file atomically; the run directory is a tmpfs, so nothing is synced.
func WriteDecision(t *pintree.Tree, s *Decision) error {
	s.Version, s.BootID, s.Decided, s.Kernel = stateVersion, nodeid.BootID(), time.Now().UTC(), bpfsys.KernelRelease()
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return pintree.WriteFile(t.Paths.State, append(raw, '\n'))
}
