// SPDX-License-Identifier: Apache-2.0

// Command sluice-ipam-store does what cluster-wide addresses need of the store of the pools: it claims addresses for the
// node, gives them back, and shows pools to the operator. sluice-ipam and "sluice ipam" run it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/etcdstore"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/kubestore"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/storeproc"
)

func main() { os.Exit(run()) }

// run is the process; it returns the exit status.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if len(os.Args) > 1 {
		if err := operate(ctx, os.Args[1], os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "sluice ipam "+os.Args[1]+":", err)
			return 1
		}
		return 0
	}
	if err := storeproc.Serve(ctx, open, nodeconf.NewLog(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, storeproc.Name+":", err)
		return 1
	}
	return 0
}

// open opens the store of a configuration.
func open(ctx context.Context, c *conf.Config) (claims.Store, error) {
	if c.Backend == conf.Etcd {
		s, err := etcdstore.Open(ctx, &c.Etcd)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	s, err := kubestore.Open(c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", claims.ErrDenied, err)
	}
	return s, nil
}
