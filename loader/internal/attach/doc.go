// SPDX-License-Identifier: Apache-2.0

// Package attach puts programs on devices, on the cgroup root and into XDP, and takes them away. It asks programs for what to
// attach. It does not decide which device gets what: the rooms above do.
package attach

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Links are the links and filters of one pin tree.
type Links struct{ *pintree.Tree }

// New returns those of t.
func New(t *pintree.Tree) Links { return Links{t} }
