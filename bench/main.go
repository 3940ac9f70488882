// SPDX-License-Identifier: Apache-2.0

// Command bench compares Sluice with no plugin at all and with upstream
// CNI plugins, in namespaces of its own. README.md says how and what the
// figures mean. Run it as root.
//
//	bench [quick]   traffic and ADD/DEL side by side, under 3 minutes
//	bench add       ADD of each interface plugin side by side
//	bench first-add the first ADD after boot, which loads the programs
//	bench churn     many pods come and go at once: mixed plugins, and against upstream
//	bench deny      a denied source floods an uplink: the denylist, and a DROP in iptables' raw table
//	bench profile   where the time of ADD and DEL goes, plugin by plugin
//	bench process   what an ADD consists of: process, files, devices, programs, each by itself
//	bench flame     where the CPU time of ADD and DEL goes, as a picture (perf)
//	bench udp       the shortest packets through a hostPort
//	bench bandwidth goodput and delay of a limited pod, by backend and rate
//	bench report    all of the traffic by pods, connections and rules, with iperf3, wrk and sockperf: JSON and a page
//	bench compare   two reports, metric by metric, with a test of significance
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/bench/traffic"
)

func main() {
	args := os.Args[1:]
	command := "quick"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	var err error
	switch command {
	case traffic.Arg: // not for people: a process of the load
		err = traffic.Main()
	case "quick":
		err = runQuick(ctx, args)
	case "add":
		err = runAdd(ctx, args)
	case "first-add":
		err = runFirstAdd(ctx, args)
	case "churn":
		err = runChurn(ctx, args)
	case "deny":
		err = runDeny(ctx, args)
	case "udp":
		err = runUDP(ctx, args)
	case "profile":
		err = runProfile(ctx, args)
	case "flame":
		err = runFlame(ctx, args)
	case "process":
		err = runProcess(ctx, args)
	case "bandwidth":
		err = runBandwidth(ctx, args)
	case "report":
		err = runReport(ctx, args)
	case "compare":
		err = runCompare(args)
	default:
		err = fmt.Errorf("unknown command %q: quick, add, first-add, churn, profile, process, flame, deny, udp, bandwidth, report or compare", command)
	}
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// common are the flags of all commands.
type common struct {
	peers, refBin, sluiceBin      string
	masquerade, lastPod, stateful bool
	plugins                       []string // that the suites must have; empty: subject.Plugins
	only                          []string // peers that the command can compare; empty: all
	suites                        []subject.Suite
	host                          report.Host
	cleanup                       []func() error
}

func (c *common) register(f *flag.FlagSet, peers string) {
	f.StringVar(&c.peers, "peers", peers, "what to compare")
	f.StringVar(&c.refBin, "reference-bin", "", "directory with the reference plugins (default: built once into the user's cache)")
	f.StringVar(&c.sluiceBin, "sluice-bin", "bin", "directory with sluice-cni")
	f.BoolVar(&c.masquerade, "ip-masq", true, "set ipMasq of the bridge plugin, as the common runtimes' default networks do")
	f.BoolVar(&c.stateful, "stateful", false, "give the node rules that ask for the state of connections, so that netfilter tracks them")
	f.BoolVar(&c.lastPod, "last-pod", false, "send the traffic to the pod attached last, not to the middle one")
}

// prepare finds or builds the suites that -peers names.
func (c *common) prepare(ctx context.Context) error {
	if err := c.checkPeers(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("namespaces need root")
	}
	if len(c.plugins) == 0 {
		c.plugins = subject.Plugins
	}
	for name := range strings.SplitSeq(c.peers, ",") {
		var s subject.Suite
		var err error
		switch {
		case subject.IsBare(name):
			s = subject.Suite{Name: name}
		case name == subject.Reference:
			s, err = c.reference(ctx)
		case name == subject.ReferenceNftables:
			s, err = c.reference(ctx)
			s.Name, s.Tables = name, "nftables"
		case name == subject.Sluice:
			s, err = c.sluice(ctx)
		case name == subject.SluiceAgain:
			s, err = c.sluice(ctx)
			s.Name = name
		case name == subject.SluiceNftables:
			s, err = c.sluice(ctx)
			s.Name, s.NodeConfig = name, `{"backend": "nftables"}`
		case name == subject.SluiceDirect:
			s, err = c.sluice(ctx)
			s.Name, s.NodeConfig = name, `{"fastPath": "immediate"}`
		case name == subject.SluiceNetkit:
			s, err = c.sluice(ctx)
			s.Name, s.BridgeKeys = name, map[string]any{"deviceKind": "netkit"}
		case name == subject.SluiceBigTCP:
			s, err = c.sluice(ctx)
			s.Name, s.BridgeKeys = name, map[string]any{"bigTCP": true}
		case name == subject.SluiceQueues:
			s, err = c.sluice(ctx)
			s.Name, s.Queues = name, runtime.NumCPU()
		case name == subject.SluiceObserved:
			if s, err = c.sluice(ctx); err == nil {
				s.Name = name
				s.Observer, err = c.operatorTool()
			}
		}
		if err != nil {
			return err
		}
		c.suites = append(c.suites, s)
	}
	return nil
}

// checkPeers refuses what would not be measured, or under another's name.
func (c *common) checkPeers() error {
	seen := map[string]bool{}
	for name := range strings.SplitSeq(c.peers, ",") {
		switch {
		case !slices.Contains(subject.Names(), name):
			return fmt.Errorf("unknown peer %q: one of %s", name, strings.Join(subject.Names(), ", "))
		case len(c.only) > 0 && !slices.Contains(c.only, name):
			return fmt.Errorf("this command cannot compare peer %q: one of %s", name, strings.Join(c.only, ", "))
		case seen[name]:
			return fmt.Errorf("peer %q twice", name)
		}
		seen[name] = true
	}
	return nil
}

// operatorTool is the path of the operator's command, good from any directory.
func (c *common) operatorTool() (string, error) {
	return filepath.Abs(filepath.Join(c.sluiceBin, "sluice"))
}

func (c *common) sluice(ctx context.Context) (subject.Suite, error) {
	dir, err := c.tempDir()
	if err != nil {
		return subject.Suite{}, err
	}
	return subject.SluiceSuite(ctx, c.sluiceBin, dir, c.plugins)
}

func (c *common) reference(ctx context.Context) (subject.Suite, error) {
	dir, err := c.tempDir()
	if err != nil {
		return subject.Suite{}, err
	}
	return subject.ReferenceSuite(ctx, c.refBin, dir, c.plugins)
}

// tempDir makes a directory that goes with the command.
func (c *common) tempDir() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err == nil {
		c.cleanup = append(c.cleanup, func() error { return os.RemoveAll(dir) })
	}
	return dir, err
}

// close undoes what the command made, last first.
func (c *common) close() error {
	var errs []error
	for _, f := range slices.Backward(c.cleanup) {
		errs = append(errs, f())
	}
	c.cleanup = nil
	return errors.Join(errs...)
}

func (c *common) names() []string {
	var names []string
	for _, s := range c.suites {
		names = append(names, s.Name)
	}
	return names
}

// describe prints what the figures belong to.
func (c *common) describe(w io.Writer) {
	c.host = report.ThisHost()
	fmt.Fprintln(w, c.host)
	versions := c.versions()
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		fmt.Fprintf(w, "%s: %s\n", name, versions[name])
	}
}

// versions is what each suite with plugins says of itself.
func (c *common) versions() map[string]string {
	versions := map[string]string{}
	for _, s := range c.suites {
		if s.BinDir != "" {
			versions[s.Name] = s.Version
		}
	}
	return versions
}

// parseInts reads "2,250", each number once.
func parseInts(list string) ([]int, error) {
	var out []int
	for f := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a list of positive numbers", list)
		}
		if slices.Contains(out, n) {
			return nil, fmt.Errorf("%q has %d twice", list, n)
		}
		out = append(out, n)
	}
	return out, nil
}

// isTerminal says whether f shows text to a person.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
