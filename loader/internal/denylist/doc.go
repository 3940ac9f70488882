// SPDX-License-Identifier: Apache-2.0

// Package denylist keeps the networks that nothing may come from, and their program on the uplinks. The room above it says which
// devices are uplinks.
package denylist

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// List is the denylist of one pin tree.
type List struct{ *pintree.Tree }

// New returns the denylist of t.
func New(t *pintree.Tree) List { return List{t} }
