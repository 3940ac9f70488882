// SPDX-License-Identifier: Apache-2.0

// Package bpfgen holds the Go types generated from the C sources in /bpf, and which
// build of the programs they belong to. The programs are in package objects below: who
// only reads or writes a map needs no BPF library for its keys and values. Only this
// file is written by hand; "make generate" writes the others.
package bpfgen

// Build tells one build of the compiled programs from another: their hash. It is
// made with them, since every ADD asks for it: hashing over a megabyte each time
// took longer than all that an ADD does to the kernel's BPF state.
const Build = build
