// SPDX-License-Identifier: Apache-2.0

// Package conformance holds the binaries to the CNI specification: every plugin, every
// version from 0.1.0 to 1.1.0, every verb, called as the specification says and
// judged by the shape of what they print. It needs root and a kernel with BPF,
// since ADD is real.
package conformance
