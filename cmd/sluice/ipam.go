// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/install"
)

// ipamFlags are the flags of "sluice ipam". sluice-ipam-store has the clients of the stores, and does the work.
type ipamFlags struct {
	conf, kubeconfig, dataDir, pool, node, network string
	yes, unused, toWhereabouts                     bool
	program                                        string
}

func newIPAM(a *app) *cobra.Command {
	var f ipamFlags
	c := &cobra.Command{
		Use:   "ipam",
		Short: "Show and correct pools of cluster-wide addresses",
		Long: `Show and correct pools of cluster-wide addresses, of the plugins sluice-ipam and
whereabouts. The pools are found by --conf, a network configuration or
whereabouts.conf, or by --kubeconfig. Without them, whereabouts' flat file on this
node says where they are.`,
		Example: `  sluice ipam pools
  sluice ipam check --kubeconfig /etc/kubernetes/admin.conf`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	p := c.PersistentFlags()
	p.StringVar(&f.conf, "conf", "", "network configuration or whereabouts.conf, a `file`")
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `file`")
	p.StringVar(&f.dataDir, "data-dir", "", "`directory` of this node's files (default: /var/lib/cni/sluice-ipam)")
	p.StringVar(&f.program, "program", "", "the sluice-ipam-store `file` (default: beside this program)")
	list := a.ipam(&f, "list", "List taken addresses and who has them", `List taken addresses and who has them. A pod that Sluice gave an address is known on
its node only; elsewhere the address is claimed by the node.`, "  sluice ipam list --pool 10.20.0.0-16")
	list.Flags().StringVar(&f.pool, "pool", "", "only this `pool`")
	pools := a.ipam(&f, "pools", "List pools, their fill and the nodes that have most", `List pools, their fill, and how many addresses each node has claimed.`, "  sluice ipam pools -o json")
	check := a.ipam(&f, "check", "Compare pools with reservations, nodes and pods", `Compare pools with reservations, nodes and pods. Findings are duplicates, leaks, lost
addresses and entries that were edited by hand. The exit status is 1 while there are
some. With --yes, certain leaks are removed: allocations of pods that are not there,
and claims of nodes that are gone. Nothing else is touched.`, "  sluice ipam check\n  sluice ipam check --yes")
	check.Flags().BoolVar(&f.yes, "yes", false, "remove certain leaks")
	release := a.ipam(&f, "release", "Free addresses", `Free an address of a pool, all addresses of a node, or what this node does not use.
With --to-whereabouts, the addresses that pods of this node have become their
allocations, as whereabouts writes them: for a node that goes back.`,
		"  sluice ipam release --pool 10.20.0.0-16 10.20.1.7 --yes\n  sluice ipam release --node worker-3 --yes")
	release.Args = cobra.MaximumNArgs(1)
	release.Flags().StringVar(&f.pool, "pool", "", "`pool` of the address")
	release.Flags().StringVar(&f.node, "node", "", "all addresses of this `node`")
	release.Flags().BoolVar(&f.unused, "unused", false, "what this node does not use")
	release.Flags().BoolVar(&f.toWhereabouts, "to-whereabouts", false, "give this node's addresses to whereabouts")
	release.Flags().BoolVar(&f.yes, "yes", false, "do it")
	imported := a.ipam(&f, "import", "Take over what whereabouts allocated for pods of this node", `Take over what whereabouts allocated for pods of this node. The allocations become
claims of the node, which whereabouts' reconciler leaves alone. DEL and CHECK work
without it, too.`, "  sluice ipam import --yes")
	imported.Flags().StringVar(&f.network, "network-name", "", "network_name of the pools, a `name`")
	imported.Flags().BoolVar(&f.yes, "yes", false, "do it")
	c.AddCommand(list, pools, check, release, imported)
	return c
}

// ipam is a command that sluice-ipam-store does.
func (a *app) ipam(f *ipamFlags, verb, short, long, example string) *cobra.Command {
	return &cobra.Command{
		Use: verb, Short: short, Long: long, Example: example, Args: noArgs,
		RunE: func(c *cobra.Command, args []string) error { return a.runIPAM(c, f, args) },
	}
}

func (a *app) runIPAM(c *cobra.Command, f *ipamFlags, args []string) error {
	path := f.program
	if path == "" {
		var err error
		if path, err = helperproc.SiblingPath(install.IPAMStore); err != nil {
			return err
		}
	}
	call := []string{c.Name(), "-output", a.output}
	for name, value := range map[string]string{
		"conf": f.conf, "kubeconfig": f.kubeconfig, "data-dir": f.dataDir, "pool": f.pool, "node": f.node, "network-name": f.network,
	} {
		if value != "" {
			call = append(call, "-"+name, value)
		}
	}
	for name, set := range map[string]bool{"yes": f.yes, "unused": f.unused, "to-whereabouts": f.toWhereabouts} {
		if set {
			call = append(call, "-"+name)
		}
	}
	cmd := exec.CommandContext(c.Context(), path, append(call, args...)...)
	cmd.Stdout, cmd.Stderr = quiet{a, a.out}, quiet{a, a.err}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return errSaid
	}
	if err != nil {
		return fmt.Errorf("%w; \"sluice install\" puts the program beside the plugins", err)
	}
	return nil
}
