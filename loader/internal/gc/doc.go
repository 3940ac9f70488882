// SPDX-License-Identifier: Apache-2.0

// Package gc removes what belongs to no attachment, to no device or to no network namespace any more, and on request all there is.
package gc

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Collector collects in one pin tree.
type Collector struct{ *pintree.Tree }

// New returns the collector of t.
func New(t *pintree.Tree) Collector { return Collector{t} }
