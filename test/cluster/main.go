// SPDX-License-Identifier: Apache-2.0

// Command cluster makes a Kubernetes of several nodes on one machine, without the internet: each node is a set of namespaces.
// docs/dev/cluster-lab.md describes it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

const usage = `usage: cluster VERB [flags]

  build        builds the programs, or those that are named; the others do so when some are missing
  up           makes a cluster and leaves it running
  down         removes it, also what is left of one that was interrupted
  list         lists the clusters of this machine, their machines and services
  shell        gives a shell with kubectl, or in a machine: shell node1
  run          runs a command in a machine: run node1 sluice doctor
  kubectl      runs kubectl
  test         makes a cluster, runs the scenarios and takes it down
  quick        the same with two nodes and a few scenarios
  conformance  runs Kubernetes' own tests of the network, with Sluice's plugins and upstream's, and compares them
  pods         measures how long many pods take to come and go, with Sluice's plugins and upstream's, in two chains

cluster VERB -h lists the flags of a verb.
`

func main() {
	if len(os.Args) > 1 && os.Args[1] == machine.Role {
		if err := machine.Main(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
		os.Exit(1)
	}
}

// A verb gets its flags and arguments.
type verb func(ctx context.Context, name string, args []string) error

func verbs() map[string]verb {
	return map[string]verb{
		"build": build, "up": up, "down": down, "list": list, "shell": shell, "run": runIn, "kubectl": kubectl,
		"test": test, "quick": test, "pods": pods, "conformance": conformance,
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	v := verbs()[args[0]]
	if v == nil {
		return fmt.Errorf("%q is no verb\n%s", args[0], usage)
	}
	return v(ctx, args[0], args[1:])
}

// flags has the flags of all verbs.
func flags(name string) (set *flag.FlagSet, cluster *string) {
	set = flag.NewFlagSet("cluster "+name, flag.ContinueOnError)
	return set, set.String("name", "default", "the cluster, when there are several on this machine")
}

// options has the flags of the verbs that make a cluster.
func options(set *flag.FlagSet) *kube.Options {
	o := &kube.Options{}
	set.IntVar(&o.Nodes, "nodes", 3, "how many nodes")
	set.StringVar(&o.Proxy, "proxy", "iptables", "kube-proxy's mode: "+strings.Join(kube.Proxies, ", "))
	set.StringVar(&o.Main, "main", "ptp", "the interface plugin: "+strings.Join(kube.Mains, ", "))
	set.StringVar((*string)(&o.Plugins), "plugins", string(kube.Sluice), fmt.Sprintf("whose plugins: %v", kube.AllPlugins))
	set.StringVar(&o.Chain, "chain", kube.DefaultChain, "the network's configuration: empty, or "+kube.FlannelChain)
	set.StringVar(&o.Agent, "agent", "", fmt.Sprintf("have sluice-agent install the plugins and keep routes, in one of the modes %v", kube.Agents))
	set.BoolVar(&o.NetworkPolicy, "network-policy", false, "have the agents enforce NetworkPolicy objects")
	return o
}

func build(ctx context.Context, name string, args []string) error {
	set, _ := flags(name)
	if err := set.Parse(args); err != nil {
		return err
	}
	programs := set.Args()
	if len(programs) == 0 {
		programs = append(kubebin.ControlPlane(), kubebin.All()...)
	}
	dir, err := kubebin.Build(ctx, programs...)
	if err == nil {
		fmt.Println(dir)
	}
	return err
}

func up(ctx context.Context, name string, args []string) error {
	set, cluster := flags(name)
	o := options(set)
	if err := set.Parse(args); err != nil {
		return err
	}
	if _, err := makeCluster(ctx, *cluster, *o); err != nil {
		return err
	}
	fmt.Println("go run ./test/cluster shell -name", *cluster, "has kubectl")
	return nil
}

// makeCluster builds what is missing and makes a cluster.
func makeCluster(ctx context.Context, name string, o kube.Options) (*kube.Cluster, error) {
	if _, err := kubebin.Build(ctx, kube.Programs()...); err != nil {
		return nil, err
	}
	start := time.Now()
	c, err := kube.Up(ctx, name, o)
	if err != nil {
		return nil, err
	}
	fmt.Printf("cluster %s is up after %.1f s: %d nodes, %s plugins with %s, kube-proxy by %s\n", name, time.Since(start).Seconds(), o.Nodes, o.Plugins, o.Main, o.Proxy)
	return c, nil
}

func down(_ context.Context, name string, args []string) error {
	set, cluster := flags(name)
	if err := set.Parse(args); err != nil {
		return err
	}
	return kube.Down(*cluster)
}

func list(_ context.Context, name string, args []string) error {
	set, _ := flags(name)
	if err := set.Parse(args); err != nil {
		return err
	}
	all, err := kube.Clusters()
	if err != nil {
		return err
	}
	for _, name := range all {
		c, err := kube.Open(name)
		if err != nil {
			fmt.Printf("%s: not whole, take it down: %v\n", name, err)
			continue
		}
		fmt.Printf("%s: %+v\n", name, c.Options)
		for _, m := range c.All() {
			listMachine(m)
		}
	}
	return nil
}

func listMachine(m *machine.Machine) {
	states, err := m.Services()
	if err != nil {
		fmt.Printf("  %s: %v\n", m.Name, err)
		return
	}
	fmt.Printf("  %s, logs in %s/log:\n", m.Name, m.Dir)
	var lines []string
	for name, s := range states {
		line := fmt.Sprintf("    %s, pid %d in the machine", name, s.PID)
		if !s.Running {
			line += ", ended: " + s.Exit
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	fmt.Println(strings.Join(lines, "\n"))
}
