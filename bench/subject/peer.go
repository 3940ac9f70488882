// SPDX-License-Identifier: Apache-2.0

// Package subject builds the worlds that the benchmarks compare: the same client
// and node, once with nothing in between (direct), once with a pod that the
// kernel alone forwards to (routed), once with the upstream plugins and once
// with Sluice, these with a number of pods that publish a port.
package subject

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/pkg/install"
)

// Names of the peers.
const (
	Direct = report.Direct
	Routed = "routed"
	Floor  = "floor"
	// FloorLearned is Floor with a bridge, on which SYN and SYN-ACK take the stack.
	FloorLearned = "floor-learned"
	Reference    = "reference"
	// ReferenceNftables is Reference with the nftables backend, where the plugins have one: bridge's masquerade and portmap.
	ReferenceNftables = "reference-nftables"
	Sluice            = "sluice"
	// SluiceAgain is Sluice in another world of its own: the control, which has to measure the same.
	SluiceAgain = "sluice-again"
	// SluiceNftables is Sluice's nftables backend.
	SluiceNftables = "sluice-nftables"
	// SluiceDirect is Sluice with fastPath "immediate".
	SluiceDirect = "sluice-direct"
	// SluiceObserved is Sluice with an observer of everything.
	SluiceObserved = "sluice-observed"
	// SluiceNetkit is Sluice with pods on netkit devices.
	SluiceNetkit = "sluice-netkit"
	// SluiceBigTCP is Sluice with BIG TCP for the pods and on the uplink.
	SluiceBigTCP = "sluice-bigtcp"
	// SluiceQueues is Sluice where pods, node and client have a queue of their devices for each processor.
	SluiceQueues = "sluice-queues"
)

// Plugins are the binaries that the chain needs.
var Plugins = []string{"bridge", "host-local", "portmap", "firewall"}

// bare are the peers without any plugin, and so without a directory.
var bare = []string{Direct, Routed, Floor, FloorLearned}

// IsBare says whether name is a peer without plugins.
func IsBare(name string) bool { return slices.Contains(bare, name) }

// Names are those of all peers.
func Names() []string {
	return append(slices.Clone(bare), Reference, ReferenceNftables, Sluice, SluiceAgain, SluiceNftables, SluiceDirect, SluiceObserved, SluiceNetkit, SluiceBigTCP, SluiceQueues)
}

// Suite is a set of plugins to compare. A bare peer has no directory.
type Suite struct {
	Name string
	// BinDir holds the files of Plugins.
	BinDir string
	// NodeConfig is what /etc/sluice/config.json of its nodes holds, empty for
	// none.
	NodeConfig string
	// Tables is the backend of bridge and portmap in the network's configuration, empty for none.
	Tables string
	// BridgeKeys are keys of bridge beside those of the chain. With bigTCP, the uplink of node and client takes such segments too.
	BridgeKeys map[string]any
	// Queues is how many queues the devices have in each direction; 0: what the kernel makes.
	Queues int
	// Observer is the path of sluice, to observe by while the world is measured; empty: there is no observer.
	Observer string
	// Version is what the suite says of itself, for the report.
	Version string
}

// check fails when one of the plugins is missing.
func (s Suite) check(plugins []string) error {
	for _, p := range plugins {
		if _, err := os.Stat(filepath.Join(s.BinDir, p)); err != nil {
			return fmt.Errorf("peer %s: %w", s.Name, err)
		}
	}
	return nil
}

// SluiceSuite installs the programs found in binDir into a directory of its own,
// which the caller must remove.
func SluiceSuite(ctx context.Context, binDir, linkDir string, plugins []string) (Suite, error) {
	if _, err := install.Install(ctx, linkDir, install.Options{}, install.Sources(binDir, plugins)...); err != nil {
		return Suite{}, fmt.Errorf("peer %s (built with make build?): %w", Sluice, err)
	}
	s := Suite{Name: Sluice, BinDir: linkDir}
	s.Version = about(filepath.Join(linkDir, plugins[0]))
	return s, s.check(plugins)
}
