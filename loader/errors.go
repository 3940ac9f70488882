// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
)

// Callers tell errors apart by these.
var (
	// ErrUnavailable says that this kernel, or this environment, cannot run the eBPF datapath. The text around it names
	// the probe, what it found and what to do. Plugins report it as 105 (ADD) or 50 (STATUS).
	ErrUnavailable = pintree.ErrUnavailable
	// ErrNotLoaded says that no datapath is pinned for this network namespace. For DEL and GC there is nothing to clean.
	ErrNotLoaded = pintree.ErrNotLoaded
	// ErrIncompatible says that the pinned maps have another layout than this build's programs need.
	ErrIncompatible = pintree.ErrIncompatible
	// ErrOtherRelease says that the helper beside this program is of another release, as while files are replaced.
	ErrOtherRelease = loadapi.ErrOtherRelease
	// ErrFull says that a map has no room for another entry.
	ErrFull = pintree.ErrFull
	// ErrForeign says that another user made a directory of the pins or of the run directory, or can write to it. What is in it may not
	// be trusted, and nothing may be put there. The text names the directory and says what to do.
	ErrForeign = pintree.ErrForeign
	// ErrDiffers says that the kernel's state is not what was asked to be there (CheckEndpoint, CheckHostPorts).
	ErrDiffers = pintree.ErrDiffers
	// ErrConflict says that a place on a device that must be ours is taken by another program.
	ErrConflict = pintree.ErrConflict
	// ErrNoDevice says that a device does not exist (any more).
	ErrNoDevice = pintree.ErrNoDevice
)
