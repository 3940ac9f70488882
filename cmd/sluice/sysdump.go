// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/sysdump"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// sysdumpView is what "sysdump -o json" prints.
type sysdumpView struct {
	File    string   `json:"file"`
	Parts   int      `json:"parts"`
	Missing []string `json:"missing"` // parts that could not be had in full, and why
}

func newSysdump(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "sysdump [FILE]",
		Short: "Write an archive with what a maintainer needs",
		Long: `Write an archive (tar, gzip) with what a maintainer needs: versions, kernel, the
output of the other commands of this tool, configuration, records, devices,
addresses, routes, programs, netfilter rules, sysctls, the kernel log and the
plugins' log. The default FILE is in the working directory, and its name has the
host name and the time. "-" is standard output, for the agent's container, whose
file system is read-only.

Only root can read the file (mode 0600). The archive notes commands that are
missing on the node. Its README lists what is left out.

` + sysdump.Omitted,
		Example: `  sluice sysdump
  sluice sysdump /tmp/node7.tar.gz
  kubectl -n kube-system exec POD -- sluice sysdump - > node7.tar.gz`,
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
				_, err := sysdump.Write(c.Context(), quiet{a, a.out}, dir, at, a.parts())
				return err
			}
			err = a.sysdump(c.Context(), file, dir, at)
			if len(args) == 0 && errors.Is(err, errNoFile) {
				return fmt.Errorf("%w; name another FILE, or have it on standard output, as from a container: sluice sysdump - > %s", err, file)
			}
			return err
		},
	}
}

var errNoFile = errors.New("the archive cannot be made")

func (a *app) sysdump(ctx context.Context, file, dir string, at time.Time) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoFile, err)
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
	v := sysdumpView{File: file, Parts: len(parts), Missing: append([]string{}, missing...)}
	return a.print(v, func() error {
		if len(missing) > 0 {
			if err := a.say("Incomplete: %s.", strings.Join(missing, "; ")); err != nil {
				return err
			}
		}
		return a.say("Wrote %s, %s. Check it before you share it: it names hosts, addresses and containers.", file, plural(len(parts), "part"))
	})
}

// sysdumpEntries is how many conntrack entries an archive has.
const sysdumpEntries = "5000"

// parts are what the tool itself can say, then the node's.
func (a *app) parts() []sysdump.Part {
	parts := []sysdump.Part{}
	for _, args := range [][]string{
		{"version"}, {"status", "-w"}, {"doctor", "-w"}, {"cleanup"}, {"hostports"}, {"endpoints"}, {"bandwidth"}, {"firewall"}, {"deny", "list"}, {"drops"}, {"nat", "pools"}, {"nat", "stats"}, {"conntrack", "list", "--limit", sysdumpEntries},
	} {
		name := args[0]
		if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
			name += "-" + args[1]
		}
		parts = append(parts, a.said(name+".txt", args...))
		parts = append(parts, a.said(name+".json", append(args, "-o", "json")...))
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
