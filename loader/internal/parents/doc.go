// SPDX-License-Identifier: Apache-2.0

// Package parents puts a program on the parent devices of macvlan, ipvlan and vlan pods, where no pod can bypass it, and says which
// packets there are whose. Rooms that have rules or limits of such pods use it. It knows neither.
package parents

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Parents are the parent devices of one pin tree.
type Parents struct{ *pintree.Tree }

// New returns the parent devices of t.
func New(t *pintree.Tree) Parents { return Parents{t} }
