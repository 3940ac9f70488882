// SPDX-License-Identifier: Apache-2.0

// Package e2e judges Sluice from the outside: the real binaries, called
// through libcni as a container runtime calls them, and real sockets in network
// namespaces that see what a pod, a client and the node's own programs see.
// Every test makes its own node, so tests run side by side and the machine they
// run on is never touched. They need root and a kernel with BPF, and fail
// without.
package e2e
