// SPDX-License-Identifier: Apache-2.0

// Command sluice-agent is the optional node agent. It installs the plugins, writes the network's configuration, and keeps routes between
// nodes, by what Node objects say. No packet and no ADD depends on it. docs/agent.md describes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/sluice-cni/sluice/pkg/agent"
	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/version"
)

// The garbage collector runs more often than by default, and hard before the process reaches the memory that the agent may have.
// GOGC and GOMEMLIMIT have precedence.
const (
	gcPercent   = 40
	memoryLimit = 20 << 20

	// With NetworkPolicies there are the records of 10,000 pods, the lists at the start, and an event for each update of a pod. The
	// collector would go through the records every few seconds.
	policyPercent = 100
	policyLimit   = 40 << 20
)

func main() {
	limitMemory(gcPercent, memoryLimit)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process
	err := newRoot(os.Stdout).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "sluice-agent: %v\n", err)
		os.Exit(1)
	}
}

func limitMemory(percent int, limit int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// levels are those of --log-level.
var levels = []string{"debug", "info", "warn", "error"}

// flags are those of the command line.
type flags struct {
	config, kubeconfig, node, logLevel string
}

func newRoot(out io.Writer) *cobra.Command {
	f := &flags{}
	root := &cobra.Command{
		Use:   "sluice-agent",
		Short: "Run the node agent of the Sluice CNI plugins",
		Long: `Run the node agent of the Sluice CNI plugins.

It installs the plugins that lie beside it and watches over them, keeps the
routes to pods of other nodes, exempts the cluster's networks from masquerade,
and writes the network's configuration last. If the configuration says so, it
enforces NetworkPolicy objects. It learns of the nodes from the API server.
While that is away, or the agent is, the node stays as it is.`,
		Example: `  sluice-agent --kubeconfig /etc/sluice/kubeconfig
  sluice-agent check-config /etc/sluice/agent.yaml
  sluice-agent remove`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	root.SetOut(out)
	p := root.PersistentFlags()
	p.StringVar(&f.config, "config", agentconf.DefaultPath, "`file` with the agent's configuration")
	p.StringVar(&f.logLevel, "log-level", "info", "`level`: debug, info, warn or error")
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` with the API server and credentials (default: those of the pod)")
	p.StringVar(&f.node, "node-name", "", "`name` of the Node object (default: $NODE_NAME, then the host name)")
	for name, complete := range map[string]cobra.CompletionFunc{
		"log-level": cobra.FixedCompletions(levels, cobra.ShellCompDirectiveNoFileComp),
		"node-name": cobra.NoFileCompletions,
	} {
		if err := root.RegisterFlagCompletionFunc(name, complete); err != nil {
			panic(err) // a flag that every run of the program lacks
		}
	}
	root.AddCommand(newRemove(f), newCheckConfig(), newSchema(), newVersion())
	return root
}

func newRemove(f *flags) *cobra.Command {
	var how agent.RemoveOptions
	c := &cobra.Command{
		Use:   "remove",
		Short: "Take off the node what the agent has put there",
		Long: `Take off the node what the agent has put there: the network's configuration,
routes and devices, the exemptions from masquerade, the node's annotations, the
datapath's programs, and the plugins.

If the runtime has another network, the agent's goes at once, and its pods are
detached as they end. Without another network it takes no new pods, and stays
until its pods are gone: a runtime without a network makes no DEL.

While pods are attached the programs and the plugins stay, because they need
them. The exit status is then 1; with --wait the command goes on until they are
gone. --force does not wait for pods: it removes the network and the plugins.
Without pods, --force also removes programs that hold a denylist.

The annotations need the API server: --kubeconfig, or a pod's credentials.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o, err := f.options(c)
			if err != nil {
				return err
			}
			if o.Node, err = f.nodeName(); err != nil {
				return err
			}
			if o.Kube, err = kube.Config(f.kubeconfig); err != nil {
				o.Log.Warn("the node's annotations stay", log.Error(err))
			}
			return agent.Remove(c.Context(), o, how)
		},
	}
	c.Flags().BoolVar(&how.Wait, "wait", false, "go on until no pod is attached")
	c.Flags().BoolVar(&how.Force, "force", false, "remove the plugins while pods are attached too")
	return c
}

func newCheckConfig() *cobra.Command {
	return &cobra.Command{
		Use:   "check-config FILE",
		Short: "Say what is wrong with a configuration",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := agentconf.Load(args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s: ok\n", args[0])
			return err
		},
	}
}

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(agentconf.Schema)
			return err
		},
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this build",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "sluice-agent %s (%s, %s/%s)\n", version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// run is the agent itself.
func (f *flags) run(c *cobra.Command) error {
	o, err := f.options(c)
	if err != nil {
		return err
	}
	if o.Kube, err = kube.Config(f.kubeconfig); err != nil {
		return err
	}
	if o.Node, err = f.nodeName(); err != nil {
		return err
	}
	if o.Config.NetworkPolicy.Enabled {
		limitMemory(policyPercent, policyLimit)
	}
	o.Log.Info("sluice-agent "+version.String(), log.String("node", o.Node), log.String("routing", string(o.Config.Routing)))
	return agent.Run(c.Context(), o)
}

// options reads the configuration. Without a file at the default place all defaults hold.
func (f *flags) options(c *cobra.Command) (o agent.Options, err error) {
	if !slices.Contains(levels, f.logLevel) {
		return o, fmt.Errorf("--log-level %q: must be debug, info, warn or error", f.logLevel)
	}
	o.Log = log.New(log.Options{Level: f.logLevel})
	if f.logLevel != "debug" { // client-go's own lines; what they are about is reported by the agent
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	o.Config, err = agentconf.Load(f.config)
	if errors.Is(err, fs.ErrNotExist) && !c.Flags().Changed("config") {
		o.Config, err = agentconf.Default(), nil
	}
	if err != nil {
		return o, err
	}
	self, err := os.Executable()
	if err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	o.Programs = filepath.Dir(self)
	return o, nil
}

func (f *flags) nodeName() (string, error) {
	if f.node != "" {
		return f.node, nil
	}
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "", fmt.Errorf("find the node's name: %w; give --node-name", err)
	}
	return strings.ToLower(name), nil // as kubelet does
}
