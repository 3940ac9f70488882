// SPDX-License-Identifier: Apache-2.0

// Package agent tests the node agent as a process on a node, against a real API server: what it puts on the node, and what stays while it or
// the API server is away.
package agent
