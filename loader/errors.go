// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/loader/loadapi"
)

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
	// ErrTooManyHostPorts says that one attachment wants more hostPorts than hostPortsPerAttachment of the node configuration.
	ErrTooManyHostPorts = errors.New("more hostPorts than hostPortsPerAttachment")
	// ErrDiffers says that the kernel's state is not what was asked to be there (CheckEndpoint, CheckHostPorts).
	ErrDiffers = errors.New("datapath state differs")
	// ErrConflict says that a place on a device that must be ours is taken by somebody else.
	ErrConflict = errors.New("taken by another program")
	// ErrNotDenied says that a network is not in the deny list.
	ErrNotDenied = errors.New("not in the deny list")
	// ErrBusy says that somebody else reads the events.
	ErrBusy = errors.New("busy")
	// ErrNoDevice says that a device does not exist (any more).
	ErrNoDevice = errors.New("no such device")
	// ErrNoHostEnd is the ErrNoDevice of a device that is whole inside the pod.
	ErrNoHostEnd = fmt.Errorf("%w: no host end to attach to", ErrNoDevice)
)
