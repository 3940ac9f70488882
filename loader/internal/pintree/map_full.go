// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// WrapFull says that a map has no room, where that is what the kernel means. A nil error stays nil.
func WrapFull(name string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%s: %w: %s", name, ErrFull, moreRoom(name))
	}
	return fmt.Errorf("%s: %w", name, err)
}

// moreRoom says how a map that is full gets room: most have a fixed size.
func moreRoom(name string) string {
	if key := SizeKey(name); key != "" {
		return fmt.Sprintf("raise %q of mapSizes in the node configuration", key)
	}
	if name == MapUplinks {
		return `its size is fixed: name the devices that carry traffic out in "uplinks" of the node configuration`
	}
	return "its size is fixed"
}

// SizeKey is the key of mapSizes in the node configuration that the size of a map comes from; empty: it is fixed.
func SizeKey(name string) string {
	switch name {
	case MapConntrack, MapConntrackPlaces:
		return "conntrack"
	case MapConntrackUnassured:
		return "conntrackUnassured"
	case MapEndpoints, MapEpStats, MapPodDevices, MapPodnsDevices, MapParentPods, MapEDTLimits, MapEDTCIDRs, MapPolicies:
		return "endpoints"
	case MapHostPorts:
		return "hostPorts"
	case MapNPPeers, MapNPCIDRs, MapNPServices, MapNPBits, MapNPNamespaces:
		return "networkPolicy"
	}
	return ""
}
