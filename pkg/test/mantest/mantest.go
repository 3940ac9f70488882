// SPDX-License-Identifier: Apache-2.0

// Package mantest makes the man pages of a program's commands. Tests of the programs look at them, and write them into the folder that
// -man names: build/release and "make install" run those tests for the pages, so that no program links what makes them.
package mantest

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var folder = flag.String("man", "", "write the man pages into the `folder` of this absolute path")

// option is an option as the library writes it: its text is not a paragraph of a list, but a line that begins with a tab.
var option = regexp.MustCompile(`(?m)(?:^\.PP\n)?^(\\fB-.*)\n\t(.*)\n`)

// Check makes a man page of each command of root that help shows, but those that skip takes. It fails where a page lacks one of its parts.
func Check(t *testing.T, root *cobra.Command, skip func(*cobra.Command) bool) {
	root.InitDefaultCompletionCmd()
	check(t, root, skip)
}

func check(t *testing.T, c *cobra.Command, skip func(*cobra.Command) bool) {
	if c.Hidden || c.Name() == "help" || skip != nil && skip(c) {
		return
	}
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	text := page(t, c, name)
	for _, want := range []string{
		".TH \"" + strings.ToUpper(name) + "\" \"8\" \"@DATE@\" \"Sluice @VERSION@\"", ".SH NAME\n" + name + " - " + c.Short, "\n.SH SYNOPSIS\n", "\n.SH DESCRIPTION\n", "\n.SH OPTIONS\n.TP\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s.8 lacks %q", name, want)
		}
	}
	if strings.Contains(text, "\n\t") {
		t.Errorf("%s.8 has an option that is no item of a list", name)
	}
	if *folder != "" {
		if err := os.WriteFile(filepath.Join(*folder, name+".8"), []byte(text), 0o644); err != nil { //nolint:gosec // all users read it
			t.Fatal(err)
		}
	}
	for _, sub := range c.Commands() {
		check(t, sub, skip)
	}
}

// page returns the man page of a command. build/release and the Makefile put version and date into it.
func page(t *testing.T, c *cobra.Command, name string) string {
	t.Helper()
	c.InitDefaultHelpFlag()
	c.DisableAutoGenTag = true
	year1 := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	var buf bytes.Buffer
	if err := doc.GenMan(c, &doc.GenManHeader{Title: strings.ToUpper(name), Section: "8", Date: &year1, Source: "Sluice @VERSION@", Manual: "Sluice"}, &buf); err != nil {
		t.Fatal(err)
	}
	text := option.ReplaceAllString(strings.Replace(buf.String(), "Jan 0001", "@DATE@", 1), ".TP\n$1\n$2\n")
	return ".\\\" SPDX-License-Identifier: Apache-2.0\n" + text
}
