// SPDX-License-Identifier: Apache-2.0

// Package ratelimit puts limits by departure times (EDT) on devices with an fq qdisc, and takes them away.
package ratelimit

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Limits are those of one pin tree.
type Limits struct{ *pintree.Tree }

// New returns the limits of t.
func New(t *pintree.Tree) Limits { return Limits{t} }
