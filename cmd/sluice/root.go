// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/terminal"
)

// errSaid ends a command with exit status 1 after it has said why itself.
var errSaid = errors.New("already reported")

// app is one run of the tool: where it prints, and the node it looks at.
type app struct {
	out, err io.Writer
	in       *os.File // keys are read from it where it is a terminal; nil: none
	colours  colours
	width    int // of the terminal, 0 when out is none
	node     node
	ops      nodeOps

	working *terminal.Progress // of the command that runs

	output string // "table" or "json"
	wide   bool   // whole container IDs and more columns
}

const (
	outputTable = "table"
	outputJSON  = "json"
)

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Install the Sluice CNI plugins and look into their datapath",
		Long: `Install the Sluice CNI plugins and look into their datapath.

The plugins publish ports, masquerade and admit pods by eBPF programs that are
pinned once per node; no daemon runs. This tool reads the pinned maps and the
attachment records under /run/sluice. Only install, resync, deny, cleanup,
conntrack relearn, nat flush, ipam release, ipam import, ipam check --yes and
unload change anything.`,
		Example: `  sluice install /opt/cni/bin
  sluice status
  sluice conntrack list --pod 10.1.0.5 -o json`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if a.output != outputTable && a.output != outputJSON {
				return fmt.Errorf("--output %q: must be table or json", a.output)
			}
			a.working = terminal.StartProgress(terminal.Of(a.err), doing[strings.TrimPrefix(c.CommandPath(), "sluice ")])
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	flags := root.PersistentFlags()
	flags.StringVarP(&a.output, "output", "o", outputTable, "output `format`: table or json")
	flags.BoolVarP(&a.wide, "wide", "w", false, "whole container IDs and more columns")
	must(root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{outputTable, outputJSON}, cobra.ShellCompDirectiveNoFileComp)))
	root.AddCommand(
		newInstall(a), newStatus(a), newHostPorts(a), newConntrack(a), newEndpoints(a), newBandwidth(a), newFirewall(a), newDeny(a),
		newMonitor(a), newObserve(a), newTop(a), newTrace(a), newDrops(a), newMetrics(a), newUI(a), newNAT(a), newIPAM(a),
		newDoctor(a), newCleanup(a), newSysdump(a), newResync(a), newUnload(a), newAgent(), newVersion(a))
	return root
}

// noArgs refuses arguments with a sentence that helps.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		return fmt.Errorf("unknown command %q; %q lists the commands", args[0], c.CommandPath()+" -h")
	}
	return fmt.Errorf("%s takes no arguments: %s", c.CommandPath(), strings.Join(args, " "))
}

// doing says what a command does while it prints nothing, for those that can take longer than a second.
var doing = map[string]string{
	"cleanup":           "looking for what deleted pods left",
	"conntrack list":    "reading the connections",
	"conntrack relearn": "sending connections through the slow path",
	"deny add":          "adding to the denylist",
	"doctor":            "examining the node",
	"install":           "installing the plugins",
	"ipam check":        "comparing the pools",
	"ipam import":       "taking over allocations",
	"ipam list":         "reading the pools",
	"ipam pools":        "reading the pools",
	"ipam release":      "freeing addresses",
	"metrics":           "reading the node",
	"nat flush":         "ending connections",
	"nat list":          "reading the connections",
	"nat pools":         "reading the connections",
	"nat stats":         "reading the connections",
	"resync":            "bringing the datapath up to date",
	"status":            "reading the datapath",
	"sysdump":           "gathering the archive",
	"trace":             "following the packet",
	"unload":            "removing the datapath",
}

// quiet is a writer that ends the progress before it writes.
type quiet struct {
	a *app
	w io.Writer
}

func (q quiet) Write(b []byte) (int, error) {
	q.a.working.Stop()
	return q.w.Write(b)
}

// print writes v as JSON, or calls text for people.
func (a *app) print(v any, text func() error) error {
	a.working.Stop()
	if a.output == outputTable {
		return text()
	}
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// say prints a sentence for people.
func (a *app) say(format string, args ...any) error {
	a.working.Stop()
	_, err := fmt.Fprintln(a.out, a.colours.visible(fmt.Sprintf(format, args...)))
	return err
}

// field prints a name and its text, folded to the terminal's width.
func (a *app) field(name, text string, paint func(string) string) error {
	const indent = 12
	width := max(a.width-indent, 40)
	if a.width == 0 {
		width = len(text)
	}
	for _, line := range fold(visible(text), width) {
		if err := a.say("%-*s%s", indent, name, paint(line)); err != nil {
			return err
		}
		name = ""
	}
	return nil
}

// fold breaks text at spaces into lines of at most width characters; a word
// that is longer has its own line.
func fold(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// table prints a table in the style of the output.
func (a *app) table(t *table) error { return t.write(quiet{a, a.out}, a.colours, a.width) }

// nothing prints an empty list as JSON, or the sentence that says why.
func (a *app) nothing(empty any) error {
	return a.print(empty, func() error { return a.say(notLoaded) })
}

// must is for mistakes that every run of the tool would make.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
