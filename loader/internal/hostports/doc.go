// SPDX-License-Identifier: Apache-2.0

// Package hostports publishes ports of pods: the map, the allowlists, those who wait for a port, and sockets of the node that are
// connected through a port that has gone.
package hostports

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Ports are the hostPorts of one pin tree.
type Ports struct{ *pintree.Tree }

// New returns the hostPorts of t.
func New(t *pintree.Tree) Ports { return Ports{t} }
