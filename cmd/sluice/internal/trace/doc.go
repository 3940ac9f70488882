// SPDX-License-Identifier: Apache-2.0

// Package trace follows a made-up packet through a node: the programs of Sluice, the kernel's routing, and the netfilter chains
// on its way. Programs run as a copy with maps of its own (ebpfload.Copy), the kernel is only asked. So nothing of the node changes, and
// no packet leaves. What cannot be asked, it names. docs/observability.md says how to read the result.
package trace
