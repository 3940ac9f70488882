// SPDX-License-Identifier: Apache-2.0

// Command sluice-helper does for the plugins what takes libraries that they should not start with: it has the compiled BPF objects,
// verifies and pins them, talks with firewalld, and matches regular expressions. "sluice install" lays it beside the plugins, which run it, see pkg/helperproc.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"

	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/netfilter/firewalld/bus"
	"github.com/sluice-cni/sluice/pkg/sysctlallow/match"
)

func main() {
	if err := helperproc.Serve(context.Background(), jobs(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%v; plugins run this program, nobody else has to\n", err)
		os.Exit(1)
	}
}

func jobs() map[string]helperproc.Job {
	all := loadapi.Jobs(ebpfload.InProcess{})
	maps.Copy(all, bus.Jobs())
	maps.Copy(all, match.Jobs())
	return all
}
