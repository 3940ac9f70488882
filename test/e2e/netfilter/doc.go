// SPDX-License-Identifier: Apache-2.0

// Package netfilter tests the backends without eBPF: nftables, both iptables,
// firewalld.
package netfilter
