// SPDX-License-Identifier: Apache-2.0

// Command sluice-ipam is the plugin of cluster-wide addresses. "sluice install" puts a starter named whereabouts beside
// it. It links no client of a store: sluice-ipam-store does, and runs only when the node's own file does not suffice.
package main

import (
	"os"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster"
)

func main() { os.Exit(run()) }

// run is the process; it returns the exit status.
func run() int { return cluster.New(cluster.Deps{}).Main(cniskel.Options{Log: nodeconf.NewLog}) }
