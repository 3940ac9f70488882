// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/internal/uplinks"
)

// What callers need of the packages below, which describe it.
type (
	Answer        = programs.Answer
	AttachModes   = programs.AttachModes
	ConfigStatus  = programs.ConfigStatus
	LocalStatus   = attach.LocalStatus
	Place         = pintree.Place
	Probe         = programs.Probe
	ProgramRun    = programs.Run
	ProgramStatus = attach.ProgramStatus
	SkippedDevice = uplinks.SkippedDevice
)

// Constants of the same packages.
const (
	AnswerYes     = programs.AnswerYes
	AnswerNo      = programs.AnswerNo
	AnswerUnclear = programs.AnswerUnclear
	DefaultRunDir = pintree.DefaultRunDir
	PinVersion    = pintree.PinVersion
)
