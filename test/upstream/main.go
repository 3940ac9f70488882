// SPDX-License-Identifier: Apache-2.0

// Command upstream runs upstream plugins' own test suites against Sluice's binaries. The suites call a plugin's functions in their
// own process: they are fetched from the module proxy, and those functions are replaced by ones that execute a plugin, as a
// runtime does. Each suite runs unchanged too, against the code it was written for, which tells what fails for the
// machine's sake. A specification that only Sluice fails must be in differences.json, with the reason.
//
// Nothing of upstream is kept in this repository. It needs root, Go and the module proxy; with -kernel the suites run in a virtual machine
// of test/vm, where all kinds of devices are. docs/dev/upstream-suites.md has the differences.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/pkg/test/vmtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("reference", flag.ContinueOnError)
	names := flags.String("suites", "", "comma-separated `plugins` whose suites to run; default: all but dhcp, which takes four minutes")
	kernel := flags.String("kernel", "", "run them in a virtual machine with this kernel `series`")
	prepared := flags.String("prepared", "", "run what is in this `directory` already")
	docs := flags.String("docs", "", "only write the page of the differences to a `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *docs != "" {
		return os.WriteFile(*docs, page(), 0o644)
	}
	chosen, err := choose(*names)
	if err != nil {
		return err
	}
	if *prepared != "" {
		return runAll(ctx, *prepared, chosen)
	}
	dir, err := os.MkdirTemp("", "sluice-reference-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "out")
	if err := prepare(ctx, dir, out, chosen); err != nil {
		return err
	}
	if *kernel == "" {
		return runAll(ctx, out, chosen)
	}
	return runInGuest(ctx, out, chosen, *kernel)
}

// runInGuest boots a kernel and runs this program in it, beside what was prepared.
func runInGuest(ctx context.Context, dir string, chosen []suite, series string) error {
	if err := goRun(ctx, "", "build", "-o", filepath.Join(dir, "reference"), testbin.Module+"/test/upstream"); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	var names []string
	for _, s := range chosen {
		names = append(names, s.plugin)
	}
	return vmtest.Run(ctx, "-kernels", series, "-with", strings.Join(files, ","),
		"-exec", `d=$(command -v reference); reference -prepared "${d%/*}" -suites `+strings.Join(names, ","))
}

// suite is the tests of one plugin.
type suite struct {
	plugin string
	// backend is what the node configuration says: some look for rules of iptables.
	backend string
	slow    bool
}

func suites() []suite {
	return []suite{
		{plugin: "bridge"}, {plugin: "dummy"}, {plugin: "host-device"},
		{plugin: "ipvlan"}, {plugin: "loopback"}, {plugin: "macvlan"},
		{plugin: "ptp"}, {plugin: "tap"}, {plugin: "vlan"},
		{plugin: "host-local"}, {plugin: "static"}, {plugin: "dhcp", slow: true},
		{plugin: "bandwidth"}, {plugin: "firewall", backend: "iptables"},
		{plugin: "portmap", backend: "iptables"}, {plugin: "sbr"},
		{plugin: "tuning"}, {plugin: "vrf"},
	}
}

func choose(names string) ([]suite, error) {
	wanted := strings.Split(names, ",")
	var out []suite
	for _, s := range suites() {
		if names == "" && !s.slow || slices.Contains(wanted, s.plugin) {
			out = append(out, s)
		}
	}
	if names != "" && len(out) != len(wanted) {
		return nil, errors.New("-suites " + names + ": not all of these are plugins with a suite")
	}
	return out, nil
}
