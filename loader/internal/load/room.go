// SPDX-License-Identifier: Apache-2.0

// Package load brings a set of programs into force, for the first time or in place of another. It has the order of the steps, which
// decides what a crash leaves.
package load

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Load loads into one pin tree.
type Load struct{ *pintree.Tree }

// New returns what loads into t.
func New(t *pintree.Tree) Load { return Load{t} }
