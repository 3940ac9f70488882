// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/sysdump"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// bundleView is what "bundle -o json" prints.
type bundleView struct {
	File    string   `json:"file"`
	Parts   int      `json:"parts"`
	Missing []string `json:"missing"` // parts that could not be had in full, and why
}

func newBundle(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "bundle [FILE]",
		Short: "Write what a maintainer needs into one archive",
		Long: `Write what a maintainer needs into one archive (tar, gzip): versions, kernel,
what the other commands of this tool print, configuration, records, devices,
addresses, routes, programs, netfilter rules of all tools, sysctls, the kernel's
last messages and the plugins' log. Without FILE it is made in the working
directory, its name holding the host's and the time; "-" is standard output.

It is made for root alone (mode 0600). A command that is missing is noted in the
archive. The README in it says what is left out.

` + sysdump.Omitted,
		Example: `  sluice bundle
  sluice bundle /tmp/node7.tar.gz`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%s takes one file: %s", c.CommandPath(), strings.Join(args, " "))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			at := time.Now().UTC()
			host, err := os.Hostname()
			if err != nil {
				host = "node"
			}
			dir := fmt.Sprintf("sluice-%s-%s", host, at.Format("20060102-150405"))
			file := dir + ".tar.gz"
			if len(args) == 1 {
				file = args[0]
			}
			if file == "-" {
				_, err := sysdump.Write(c.Context(), a.out, dir, at, a.parts())
				return err
			}
			return a.bundle(c.Context(), file, dir, at)
		},
	}
}

func (a *app) bundle(ctx context.Context, file, dir string, at time.Time) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	parts := a.parts()
	missing, err := sysdump.Write(ctx, f, dir, at, parts)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(file)
		return fmt.Errorf("write %s: %w", file, err)
	}
	v := bundleView{File: file, Parts: len(parts), Missing: append([]string{}, missing...)}
	return a.print(v, func() error {
		if len(missing) > 0 {
			if err := a.say("Not to be had in full: %s.", strings.Join(missing, "; ")); err != nil {
				return err
			}
		}
		return a.say("Wrote %s, %s. Look through it before you hand it on: it names hosts, addresses and containers.", file, plural(len(parts), "part"))
	})
}

// bundledFlows is how many flows a bundle has.
const bundledFlows = "5000"

// parts are what the tool itself can say, then the node's.
func (a *app) parts() []sysdump.Part {
	parts := []sysdump.Part{}
	for _, args := range [][]string{
		{"version"}, {"status", "-w"}, {"doctor", "-w"}, {"sweep"}, {"hostports"}, {"endpoints"}, {"bandwidth"}, {"firewall"}, {"deny", "list"}, {"drops"}, {"masquerade"}, {"nat", "stats"}, {"flows", "--limit", bundledFlows},
	} {
		parts = append(parts, a.said(args[0]+".txt", args...))
		parts = append(parts, a.said(args[0]+".json", append(args, "-o", "json")...))
	}
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		conf = nil // the file itself is a part, and the commands say what is wrong with it
	}
	return append(parts, sysdump.Node(conf)...)
}

// said is what a command of the tool prints, whatever its exit status says.
func (a *app) said(name string, args ...string) sysdump.Part {
	return sysdump.Part{Name: "sluice/" + name, Make: func(ctx context.Context) ([]byte, error) {
		var out, errs bytes.Buffer
		one := *a
		one.out, one.err, one.colours, one.width, one.wide, one.output = &out, &errs, false, 0, false, outputTable
		if status := one.run(ctx, args); status == 1 {
			return out.Bytes(), fmt.Errorf("sluice %s: %s", strings.Join(args, " "), strings.TrimSpace(errs.String()))
		}
		_, err := io.Copy(&out, &errs)
		return out.Bytes(), err
	}}
}
