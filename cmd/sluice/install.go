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
	Action   string `json:"action"` // copied or unchanged
	Replaced bool   `json:"replaced"`
}

func newInstall(a *app) *cobra.Command {
	var binary string
	c := &cobra.Command{
		Use:   "install DIR [PLUGIN...]",
		Short: "Lay the plugins into a directory, as names of their programs",
		Long: `Lay the plugins into DIR, as names of their programs: dhcp is one of
sluice-dhcp, the others are names of sluice-cni. sluice-helper lies beside them,
which they run to load programs into the kernel, to talk with firewalld, and for
the allowlist of tuning.

Each program is copied once, and its names are hard links to the copy. Each name
is replaced by one rename, so a runtime that starts a plugin meanwhile gets the
old file or the new one. Plugins of other suites that have the same name are
replaced; other files in DIR are left alone. With names of plugins, only
these. The programs are looked for beside this one; --binary names another
sluice-cni, which the others are then looked for beside.`,
		Example: `  sluice install /opt/cni/bin
  sluice install --binary ./bin/sluice-cni /usr/lib/cni
  sluice install /opt/cni/bin portmap firewall`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 {
				return errors.New("install needs a directory, for example /opt/cni/bin")
			}
			for _, name := range args[1:] {
				if !slices.Contains(install.Plugins(), name) {
					return fmt.Errorf("%q is no plugin of Sluice: %s", name, strings.Join(install.Plugins(), ", "))
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
			return a.install(c.Context(), args[0], args[1:], binary)
		},
	}
	c.Flags().StringVar(&binary, "binary", "", "the sluice-cni `file` to install (default: beside this program)")
	return c
}

// install lays the plugins named, or all.
func (a *app) install(ctx context.Context, dir string, names []string, binary string) error {
	if len(names) == 0 {
		names = install.Plugins()
	}
	sources, err := sourcesOf(names, binary)
	if err != nil {
		return err
	}
	// The names done before a failure are reported too.
	results, err := install.Install(ctx, dir, sources...)
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
		if binary, err = helperproc.Beside(install.Multicall); err != nil {
			return nil, err
		}
	}
	var out []install.Source
	for _, src := range install.Sources(filepath.Dir(binary), names) {
		if filepath.Base(src.Path) == install.Multicall {
			src.Path = binary
		}
		if _, err := os.Stat(src.Path); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no %s for %s; --binary says where %s and what belongs to it are",
				src.Path, strings.Join(src.Names, ", "), install.Multicall)
		} else if err != nil {
			return nil, err
		}
		out = append(out, src)
	}
	return out, nil
}
