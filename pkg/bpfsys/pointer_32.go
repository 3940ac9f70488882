// SPDX-License-Identifier: Apache-2.0

//go:build 386 || arm || mipsle

package bpfsys

import "unsafe"

// pointer is an address in an attribute: 64 bits on every machine.
type pointer struct {
	p unsafe.Pointer
	_ uint32
}
