// SPDX-License-Identifier: Apache-2.0

// Package flows lists, removes and relearns connections in the conntrack maps.
package flows

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Table has the conntrack maps of one pin tree.
type Table struct{ *pintree.Tree }

// New returns the table of t.
func New(t *pintree.Tree) Table { return Table{t} }
