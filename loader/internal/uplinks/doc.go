// SPDX-License-Identifier: Apache-2.0

// Package uplinks reads the node's own network: which devices carry traffic out of the node, by which addresses, and behind which devices
// there are clients of hostPorts. It changes nothing. Read reads everything; ReadByKey begins with what the last look has left.
package uplinks
