// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end tests, a folder for each feature. They call
// the real binaries through libcni, as a container runtime does, and open real
// sockets in network namespaces: as a pod, a client and the node see it. What
// the folders share is pkg/test/e2etest. The tests need root and a kernel with
// BPF, and fail without. Every test makes its own node, so tests run side by side.
package e2e
