// SPDX-License-Identifier: Apache-2.0

package bpfobj

// Build tells one build of the compiled programs from another: their hash. It is
// made with them, since every ADD asks for it: hashing over a megabyte each time
// took longer than all that an ADD does to the kernel's BPF state.
const Build = build
