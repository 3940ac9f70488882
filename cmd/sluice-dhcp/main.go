// SPDX-License-Identifier: Apache-2.0

// Command sluice-dhcp is the dhcp plugin and, with the argument "daemon", its daemon. "sluice install" puts a starter
// with the plugin's name beside it. It is a program of its own so that the others start faster, see pkg/install.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
	"github.com/sluice-cni/sluice/plugins/ipam/dhcp"
)

// daemonCommand is the argument that makes the plugin its daemon, as with upstream.
const daemonCommand = "daemon"

func main() { os.Exit(run(install.PluginArgs(os.Args)[1:])) }

// run is the process; it returns the exit status.
func run(args []string) int {
	if len(args) > 0 && args[0] == daemonCommand {
		return daemon(args[1:])
	}
	return dhcp.New().Main(cniskel.Options{Log: nodeconf.NewLog, Observe: verbtimes.Of(dhcp.Name)})
}

// daemon serves until it is told to end.
func daemon(args []string) int {
	o, err := dhcp.ParseOptions(args, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		err = dhcp.Serve(ctx, *o, log.New(log.Options{Level: "info"}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dhcp daemon:", err)
		return 1
	}
	return 0
}
