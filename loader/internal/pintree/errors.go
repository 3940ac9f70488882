// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/loader/loadapi"
)

// The errors of several rooms.
var (
	// ErrUnavailable says that this kernel, or this environment, cannot run the eBPF datapath. The text around it names
	// the probe, what it found and what to do. Plugins report it as 105 (ADD) or 50 (STATUS).
	ErrUnavailable = errors.New("eBPF datapath unavailable")
	// ErrNotLoaded says that no datapath is pinned for this network namespace. For DEL and GC there is nothing to clean.
	ErrNotLoaded = errors.New("eBPF datapath not loaded")
	// ErrIncompatible says that the pinned maps have another layout than this build's programs need.
	ErrIncompatible = loadapi.ErrIncompatible
	// ErrFull says that a map has no room for another entry.
	ErrFull = errors.New("map is full")
	// ErrForeign says that another user made a directory of the pins or of the run directory, or can write to it. What is in it may not
	// be trusted, and nothing may be put there. The text names the directory and says what to do.
	ErrForeign = errors.New("not root's alone")
	// ErrDiffers says that the kernel's state is not what was asked to be there (CheckEndpoint, CheckHostPorts).
	ErrDiffers = errors.New("datapath state differs")
	// ErrConflict says that a place on a device that must be ours is taken by another program.
	ErrConflict = errors.New("taken by another program")
	// ErrNoDevice says that a device does not exist (any more).
	ErrNoDevice = errors.New("no such device")
)

// Differs returns an error that wraps ErrDiffers.
func Differs(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDiffers}, a...)...)
}
