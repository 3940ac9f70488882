// SPDX-License-Identifier: Apache-2.0

// Package podns attaches programs to podns devices: those inside the pod netns, of pods without a host veth. It enters the pod netns
// by the place that is noted beside the pins.
package podns

import "github.com/sluice-cni/sluice/loader/internal/pintree"

// Devices are the podns devices of one pin tree.
type Devices struct{ *pintree.Tree }

// New returns the podns devices of t.
func New(t *pintree.Tree) Devices { return Devices{t} }
