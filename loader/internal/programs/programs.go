// SPDX-License-Identifier: Apache-2.0

// Package programs makes the sets of programs: it asks what the kernel can do, has programs verified and pinned, and adds those that a
// device needs later. It attaches nothing.
package programs

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Sets are the sets of programs of one pin tree.
type Sets struct{ *pintree.Tree }

// New returns the sets of t.
func New(t *pintree.Tree) Sets { return Sets{t} }
