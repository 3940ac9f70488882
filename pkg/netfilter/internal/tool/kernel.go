// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Kernel looks at the tables of the calling thread's network namespace without
// starting a tool.
type Kernel interface {
	// HasNFTChain reports whether nftables has the chain, in a table of that
	// family (unix.NFPROTO_*).
	HasNFTChain(family int, table, chain string) (bool, error)
	// LegacyTables lists the tables that iptables-legacy has made.
	LegacyTables(v6 bool) ([]string, error)
	// NFTChains lists the chains of nftables.
	NFTChains() ([]rtnl.NFTChain, error)
}

// system is the kernel.
type system struct{}

var _ Kernel = system{}

func (system) HasNFTChain(family int, table, chain string) (bool, error) {
	return rtnl.NFTHasChain(family, table, chain)
}

func (system) NFTChains() ([]rtnl.NFTChain, error) { return rtnl.NFTChains() }

// LegacyTables reads the names that the kernel shows for the namespace; a kernel
// without the legacy tables shows none.
func (system) LegacyTables(v6 bool) ([]string, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(b)), err
}
