// SPDX-License-Identifier: Apache-2.0

// Package endpoints turns features of pods on and off: addresses, counters, programs on the host veth, and what other rooms do for
// them. It also has the list of those who wait for an address.
package endpoints

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Endpoints are those of one pin tree.
type Endpoints struct{ *pintree.Tree }

// New returns the endpoints of t.
func New(t *pintree.Tree) Endpoints { return Endpoints{t} }
