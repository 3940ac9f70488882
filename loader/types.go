// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/internal/uplinks"
)

// PinVersion is the version of the pin tree, part of the path of every pin.
const PinVersion = pintree.PinVersion

// DefaultRunDir is where decisions and locks are kept.
const DefaultRunDir = pintree.DefaultRunDir

// Answer is what a probe found.
type Answer = programs.Answer

// The three answers. AnswerUnclear means that the probe could not be carried out; it never decides against eBPF.
const (
	AnswerYes     = programs.AnswerYes
	AnswerNo      = programs.AnswerNo
	AnswerUnclear = programs.AnswerUnclear
)

// Probe is one question to the kernel.
type Probe = programs.Probe

// ProgramRun is how often a program ran and for how long.
type ProgramRun = programs.Run

// AttachModes say by what programs hang on devices: "tcx" or "clsact".
type AttachModes = programs.AttachModes

// ConfigStatus is the configuration in force.
type ConfigStatus = programs.ConfigStatus

// SkippedDevice is a device that would be an uplink but is not handled.
type SkippedDevice = uplinks.SkippedDevice

// LocalStatus says whether and how the node's own processes reach published ports.
type LocalStatus = attach.LocalStatus

// ProgramStatus is one attached program.
type ProgramStatus = attach.ProgramStatus
