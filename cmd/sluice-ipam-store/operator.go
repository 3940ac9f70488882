// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/operator"
)

// options are those of "sluice ipam", which passes them on.
type options struct {
	conf, kubeconfig, dataDir, pool, node, network, output string
	yes, unused, toWhereabouts                             bool
	args                                                   []string
}

// errFindings ends "check" with exit status 1.
var errFindings = errors.New("there are findings")

// operate runs a command of the operator.
func operate(ctx context.Context, verb string, args []string, out io.Writer) error {
	var o options
	f := flag.NewFlagSet(verb, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.conf, "conf", "", "")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "")
	f.StringVar(&o.dataDir, "data-dir", "", "")
	f.StringVar(&o.pool, "pool", "", "")
	f.StringVar(&o.node, "node", "", "")
	f.StringVar(&o.network, "network-name", "", "")
	f.StringVar(&o.output, "output", "table", "")
	f.BoolVar(&o.yes, "yes", false, "")
	f.BoolVar(&o.unused, "unused", false, "")
	f.BoolVar(&o.toWhereabouts, "to-whereabouts", false, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.args = f.Args()
	tool, err := o.tool(ctx)
	if err != nil {
		return err
	}
	switch verb {
	case "list":
		views, err := tool.List(ctx, o.pool)
		return errors.Join(err, o.print(out, views, "POOL\tADDRESS\tHOLDER\tSTATE\tPOD\tCONTAINER", func(w io.Writer) {
			for _, v := range views {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.13s\n", v.Pool, v.Address, v.Holder, v.State, v.PodRef, v.Container)
			}
		}))
	case "pools":
		views, err := tool.Pools(ctx)
		return errors.Join(err, o.print(out, views, "POOL\tRANGE\tTAKEN\tSIZE\tPODS\tNODES", func(w io.Writer) {
			for _, v := range views {
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s %s\n", v.Name, v.Range, v.Taken, v.Size, v.Pods, nodes(v.Nodes), v.Problem)
			}
		}))
	case "check":
		return o.check(ctx, tool, out)
	case "release":
		return o.release(ctx, tool, out)
	case "import":
		if !o.yes {
			return errors.New("import changes allocations of pods of this node into claims of the node; --yes does it")
		}
		n, err := tool.Import(ctx, o.network)
		fmt.Fprintf(out, "%d allocations are the node's\n", n)
		return err
	}
	return fmt.Errorf("unknown command %q", verb)
}

func nodes(n map[string]int) string {
	var out []string
	for name, count := range n {
		out = append(out, fmt.Sprintf("%s=%d", name, count))
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// tool opens the store that a configuration names, or whereabouts' flat file.
func (o *options) tool(ctx context.Context) (*operator.Tool, error) {
	section := map[string]any{"type": conf.Type}
	if o.conf != "" {
		text, err := os.ReadFile(o.conf)
		if err != nil {
			return nil, err
		}
		var file map[string]any
		if err := json.Unmarshal(text, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", o.conf, err)
		}
		if inner, ok := file["ipam"].(map[string]any); ok { // a network configuration
			file = inner
		}
		section = file
		section["type"] = conf.Type
	}
	if o.kubeconfig != "" {
		section["kubernetes"] = map[string]any{"kubeconfig": o.kubeconfig}
		section["datastore"] = conf.Kubernetes
	}
	if o.dataDir != "" {
		section["data_dir"] = o.dataDir
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "sluice-ipam", "ipam": section})
	if err != nil {
		return nil, err
	}
	c, err := conf.Load(&cniskel.Args{CmdArgs: cniskel.CmdArgs{StdinData: text}, Log: log.NewNop()})
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, c)
	if err != nil {
		return nil, err
	}
	node := blocks.ThisNode(c.ConfPath, c.DataDir)
	t := &operator.Tool{Store: s, Dir: c.DataDir, Node: node}
	t.Cluster, _ = s.(operator.Cluster)
	t.Claimer = &claims.Claimer{Store: s, Node: node, Dir: c.DataDir, Log: nodeconf.NewLog()}
	if o.network == "" {
		o.network = c.Network
	}
	return t, nil
}

func (o *options) print(out io.Writer, v any, head string, rows func(io.Writer)) error {
	if o.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	rows(w)
	return w.Flush()
}

func (o *options) check(ctx context.Context, tool *operator.Tool, out io.Writer) error {
	found, err := tool.Check(ctx, o.yes)
	if found == nil {
		found = []operator.Finding{}
	}
	perr := o.print(out, found, "KIND\tPOOL\tADDRESS\tMENDED\tWHAT", func(w io.Writer) {
		for _, f := range found {
			fixed := "no"
			switch {
			case f.Fixed:
				fixed = "yes"
			case f.Doable:
				fixed = "with --yes"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Kind, f.Pool, f.Address, fixed, f.Text)
		}
	})
	if err = errors.Join(err, perr); err != nil {
		return err
	}
	if slices.ContainsFunc(found, func(f operator.Finding) bool { return !f.Fixed }) {
		return errFindings
	}
	return nil
}

func (o *options) release(ctx context.Context, tool *operator.Tool, out io.Writer) error {
	if !o.yes {
		return errors.New("another may get the address of a pod that runs; --yes says that you know who has it (sluice ipam list)")
	}
	switch {
	case o.toWhereabouts:
		n, err := tool.Export(ctx)
		fmt.Fprintf(out, "%d addresses are allocations of their pods, the others of this node are free\n", n)
		return err
	case o.unused:
		return tool.ReleaseUnused(ctx)
	case o.node != "":
		n, err := tool.ReleaseNode(ctx, o.node)
		fmt.Fprintf(out, "%d addresses of node %s are free\n", n, o.node)
		return err
	case o.pool != "" && len(o.args) == 1:
		a, err := netip.ParseAddr(o.args[0])
		if err != nil {
			return err
		}
		holder, err := tool.ReleaseAddress(ctx, o.pool, a)
		if err == nil {
			fmt.Fprintf(out, "%s was held by %s and is free\n", a, holder)
		}
		return err
	}
	return errors.New("name what to release: --pool POOL ADDRESS, --node NAME, --unused or --to-whereabouts")
}
