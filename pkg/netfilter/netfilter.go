// SPDX-License-Identifier: Apache-2.0

// Package netfilter says what Sluice wants of netfilter where eBPF cannot run
// or is not wanted: hostPorts, masquerade and the firewall. The plugins speak
// its words. The packages iptables, nftables and firewalld do the work, and
// choice picks one. Nothing here starts a program or keeps state: the plugins'
// attachment records say what an attachment has.
package netfilter

import "errors"

var (
	// ErrBusy says that another process held the lock of the tables, or changed
	// them, for longer than a call waits. The same call may succeed later.
	ErrBusy = errors.New("netfilter tables are busy")
	// ErrUnusable says that the tool is missing or the kernel refuses it.
	ErrUnusable = errors.New("netfilter tool cannot be used")
	// ErrDiffers says that rules are missing, or differ from what was made.
	ErrDiffers = errors.New("netfilter rules differ")
	// ErrNoChain says that a chain that the configuration names does not exist.
	ErrNoChain = errors.New("no such chain")
)

// Names of the backends, as in configurations and records.
const (
	NameIPTables  = "iptables"
	NameNFTables  = "nftables"
	NameFirewalld = "firewalld"

	// Recorded names of the two variants of iptables.
	NameIPTablesNFT    = "iptables-nft"
	NameIPTablesLegacy = "iptables-legacy"
)
