// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"github.com/sluice-cni/sluice/loader/internal/pintree"
)

// InPrivateMountNS reports whether the calling thread is in a mount namespace apart from the machine's, as far as can be seen.
func InPrivateMountNS() bool {
	return pintree.InPrivateMountNS()
}

// SizeKey is the key of mapSizes in the node configuration that the size of a map comes from; empty: it is fixed.
func SizeKey(name string) string {
	return pintree.SizeKey(name)
}

// PinVersion is the version of the pin tree, part of the path of every pin.
const PinVersion = pintree.PinVersion

// DefaultRunDir is where decisions and locks are kept.
const DefaultRunDir = pintree.DefaultRunDir
