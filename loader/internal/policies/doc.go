// SPDX-License-Identifier: Apache-2.0

// Package policies puts devices of pods under policies: the peers it may talk to, in both directions. It writes the maps of
// the firewall and attaches nothing.
package policies

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Policies are those of one pin tree.
type Policies struct{ *pintree.Tree }

// New returns the policies of t.
func New(t *pintree.Tree) Policies { return Policies{t} }
