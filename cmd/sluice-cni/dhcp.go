// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/dhcp"
)

// daemonCommand is the argument that makes the dhcp plugin its daemon, as with
// the reference.
const daemonCommand = "daemon"

// dhcpDaemon serves until it is told to end; it returns the exit status.
func dhcpDaemon(args []string) int {
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
