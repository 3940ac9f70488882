// SPDX-License-Identifier: Apache-2.0

// Command sluice-ipam is the plugin of cluster-wide addresses. "sluice install" puts a starter named whereabouts beside
// it. It links no client of a store: sluice-ipam-store does, and runs only when the node's own file does not suffice.
package main

import (
	"os"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
)

func main() { os.Exit(run()) }

// run is the process; it returns the exit status.
func run() int {
	name := filepath.Base(install.PluginArgs(os.Args)[0])
	if name != conf.Whereabouts {
		name = cluster.Name
	}
	return cluster.New(cluster.Deps{Name: name}).Main(cniskel.Options{Log: nodeconf.NewLog, Observe: verbtimes.Of(name)})
}
