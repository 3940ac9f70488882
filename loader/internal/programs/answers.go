// SPDX-License-Identifier: Apache-2.0

package programs

// Answer is what a probe found.
type Answer string

// The three answers. AnswerUnclear means that the probe could not be carried out; it never decides against eBPF.
const (
	AnswerYes     Answer = "yes"
	AnswerNo      Answer = "no"
	AnswerUnclear Answer = "unclear"
)

// Probe is one question to the kernel.
type Probe struct {
	Name        string `json:"name"`
	Answer      Answer `json:"answer"`
	Reason      string `json:"reason,omitempty"`      // what was found
	Consequence string `json:"consequence,omitempty"` // what it means here
	Required    bool   `json:"required,omitempty"`
}

// AttachModes say by what programs hang on devices: "tcx" or "clsact".
type AttachModes struct {
	Uplinks string `json:"uplinks"`
	Pods    string `json:"pods"`
}

// ConfigStatus is the configuration in force.
type ConfigStatus struct {
	FastPath string `json:"fastPath"`

	// RelearnSeconds is how long a connection takes the fast path before the stack has to see it again; 0: for ever.
	RelearnSeconds uint32 `json:"relearnSeconds"`

	AntiSpoof bool     `json:"antiSpoof"`
	AdmitMark string   `json:"admitMark"`
	SNATPorts []string `json:"snatPorts"`

	NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs,omitempty"`
}
