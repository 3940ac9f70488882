// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/install"
)

// installView is one name as "install -o json" prints it.
type installView struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	Action   string `json:"action"` // installed or unchanged
	Replaced bool   `json:"replaced"`
}

func newInstall(a *app) *cobra.Command {
	var binary string
	var o install.Options
	c := &cobra.Command{
		Use:   "install DIR [PLUGIN...]",
		Short: "Install the plugins into a directory",
		Long: `Install the plugins into DIR. The programs are copied: sluice-cni has every
plugin but dhcp and cluster-wide addresses, sluice-dhcp has dhcp, sluice-ipam is
a plugin itself and has whereabouts. sluice-helper and sluice-ipam-store come with
them. The plugins run the first to load programs into the kernel, to talk with
firewalld, and to match the allowlist of tuning, the second to reach Kubernetes or
etcd.

Each plugin is a file of its own that starts its program by the program's path
(a script without a shell). So a copy over one plugin (cp -f) changes no other.
One rename replaces one name, and a runtime that starts a plugin meanwhile gets
the old file or the new one. Plugins of other suites with the same names are
replaced. Other files in DIR stay. PLUGIN arguments install only these plugins.

The programs are taken from the directory of this one. --binary names another
sluice-cni, with the others beside it. An installer in a container that has the
node's directory mounted elsewhere gives the node's path as --runtime-dir.`,
		Example: `  sluice install /opt/cni/bin
  sluice install --binary ./bin/sluice-cni /usr/lib/cni
  sluice install /opt/cni/bin portmap firewall
  sluice install --runtime-dir /opt/cni/bin /host/opt/cni/bin`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 {
				return errors.New("install needs a directory, for example /opt/cni/bin")
			}
			for _, name := range args[1:] {
				if !slices.Contains(install.Plugins(), name) {
					return fmt.Errorf("%q is not a plugin of Sluice; the plugins are %s", name, strings.Join(install.Plugins(), ", "))
				}
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return install.Plugins(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(c *cobra.Command, args []string) error {
			return a.install(c.Context(), args[0], args[1:], binary, o)
		},
	}
	c.Flags().StringVar(&binary, "binary", "", "the sluice-cni `file` to install (default: beside this program)")
	c.Flags().StringVar(&o.RuntimeDir, "runtime-dir", "", "`DIR` as the container runtime sees it (default: DIR)")
	return c
}

// install installs the plugins named, or all.
func (a *app) install(ctx context.Context, dir string, names []string, binary string, o install.Options) error {
	if len(names) == 0 {
		names = install.Plugins()
	}
	sources, err := sourcesOf(names, binary)
	if err != nil {
		return err
	}
	// The names done before a failure are reported too.
	results, err := install.Install(ctx, dir, o, sources...)
	views := make([]installView, 0, len(results))
	for _, r := range results {
		views = append(views, installView{Name: r.Name, Path: r.Path, Action: string(r.Action), Replaced: r.Replaced})
	}
	perr := a.print(views, func() error { return a.installTable(views) })
	if err != nil {
		return fmt.Errorf("install into %s: %w", dir, err)
	}
	return perr
}

func (a *app) installTable(views []installView) error {
	if len(views) == 0 {
		return nil
	}
	t := table{columns: []column{{name: "PLUGIN"}, {name: "PATH"}, {name: "ACTION"}}}
	for _, v := range views {
		action := v.Action
		if v.Replaced {
			action += ", replaced another file"
		}
		t.add(v.Name, v.Path, action)
	}
	return a.table(&t)
}

// sourcesOf finds the programs of the plugins named: binary is the multi-call one, empty for that beside this program.
func sourcesOf(names []string, binary string) ([]install.Source, error) {
	if binary == "" {
		var err error
		if binary, err = helperproc.SiblingPath(install.Multicall); err != nil {
			return nil, err
		}
	}
	var out []install.Source
	for _, src := range install.Sources(filepath.Dir(binary), names) {
		if src.Program == install.Multicall {
			src.Path = binary
		}
		if _, err := os.Stat(src.Path); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no %s for %s; --binary says where %s and what belongs to it are",
				src.Path, strings.Join(append([]string{src.Program}, src.Names...), ", "), install.Multicall)
		} else if err != nil {
			return nil, err
		}
		out = append(out, src)
	}
	return out, nil
}
