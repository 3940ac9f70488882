// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// env is what every backend works with.
type env struct {
	run    runner
	runDir string // for the lock and the decision
	log    *log.Logger
	// kernel answers what the kernel has without starting a tool.
	kernel kernel
	mark   uint32 // or-ed into the mark of packets that nftables admits; 0: none
}

// kernel looks at the tables of the calling thread's network namespace.
type kernel interface {
	// HasNFTChain reports whether nftables has the chain, in a table of that
	// family (unix.NFPROTO_*).
	HasNFTChain(family int, table, chain string) (bool, error)
	// LegacyTables lists the tables that iptables-legacy has made.
	LegacyTables(v6 bool) ([]string, error)
	// NFTChains lists the chains of nftables.
	NFTChains() ([]rtnl.NFTChain, error)
}
