// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"net/netip"
)

var (
	// ErrTooMany says that one attachment wants more mappings than hostPortsPerAttachment of the node configuration.
	ErrTooMany = errors.New("too many port mappings")
	// ErrTooManySources says that the allowlists of one attachment are larger than allowedSourcesPerAttachment of the node configuration.
	ErrTooManySources = errors.New("too many allowed sources")
)

// Limits are what one attachment may take of the maps that all pods of the node share. A tenant writes its ports and their sources into
// the specification of a pod, so that without limits one pod could leave no room for the others.
type Limits struct {
	Mappings int // see Count
	Sources  int // see AllowlistSize
}

// Check returns ErrTooMany or ErrTooManySources in words for the operator, nil for what an attachment may have.
func (l Limits) Check(ports []Mapping) error {
	if n := Count(ports); n > l.Mappings {
		return fmt.Errorf("%w: %d, and hostPortsPerAttachment of the node configuration allows %d", ErrTooMany, n, l.Mappings)
	}
	if n := AllowlistSize(ports); n > l.Sources {
		return fmt.Errorf("%w: the different lists have %d networks, and allowedSourcesPerAttachment of the node configuration allows %d", ErrTooManySources, n, l.Sources)
	}
	return nil
}

// Count is how many port mappings ports are, as a runtime counts them: one without a host address is one, though it has an entry in the
// map for each family of the pod.
func Count(ports []Mapping) int {
	seen := make(map[Key]bool, len(ports))
	for _, p := range ports {
		k := p.Key.Unmap()
		if k.HostIP.IsUnspecified() {
			k.HostIP = netip.IPv6Unspecified()
		}
		seen[k] = true
	}
	return len(seen)
}
