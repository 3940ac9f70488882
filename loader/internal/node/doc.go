// SPDX-License-Identifier: Apache-2.0

// Package node brings the maps in line with the node: its addresses, its uplinks with their programs, and the reserved ports.
package node

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Node is the node of one pin tree.
type Node struct{ *pintree.Tree }

// New returns the node of t.
func New(t *pintree.Tree) Node { return Node{t} }
