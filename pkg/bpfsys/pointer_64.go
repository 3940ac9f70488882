// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64

package bpfsys

import "unsafe"

// pointer is an address in an attribute: 64 bits on every machine.
type pointer struct{ p unsafe.Pointer }
