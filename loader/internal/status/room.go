// SPDX-License-Identifier: Apache-2.0

// Package status describes the datapath: what is attached, what maps hold, and the packets that are dropped. It changes nothing but
// the lease of the events.
package status

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// View is a view of one pin tree.
type View struct{ *pintree.Tree }

// New returns the view of t.
func New(t *pintree.Tree) View { return View{t} }
