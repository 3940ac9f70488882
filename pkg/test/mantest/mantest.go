// SPDX-License-Identifier: Apache-2.0

// Package mantest makes man pages of the commands of a program, and compares them with those of the repository. Tests of the programs
// use it.
package mantest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// option is an option as the library writes it: its text is not a paragraph of a list, but a line that begins with a tab.
var option = regexp.MustCompile(`(?m)(?:^\.PP\n)?^(\\fB-.*)\n\t(.*)\n`)

// Pages returns the man pages of all commands of root that help shows, but those that skip takes, by their file names. build/release
// puts version and date into them.
func Pages(t testing.TB, root *cobra.Command, skip func(*cobra.Command) bool) map[string]string {
	t.Helper()
	pages := map[string]string{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || skip != nil && skip(c) {
			return
		}
		c.InitDefaultHelpFlag()
		c.DisableAutoGenTag = true
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		year1 := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
		var buf bytes.Buffer
		if err := doc.GenMan(c, &doc.GenManHeader{Title: strings.ToUpper(name), Section: "8", Date: &year1, Source: "Sluice @VERSION@", Manual: "Sluice"}, &buf); err != nil {
			t.Fatal(err)
		}
		text := option.ReplaceAllString(strings.Replace(buf.String(), "Jan 0001", "@DATE@", 1), ".TP\n$1\n$2\n")
		pages[name+".8"] = ".\\\" SPDX-License-Identifier: Apache-2.0\n" + text
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root.InitDefaultCompletionCmd()
	walk(root)
	return pages
}

// Compare holds the pages of folder whose names mine takes to want. With update it writes them instead.
func Compare(t testing.TB, folder string, want map[string]string, mine func(name string) bool, update bool, how string) {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.8")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, f := range files {
		if !mine(filepath.Base(f)) {
			continue
		}
		text, err := os.ReadFile(f) //nolint:gosec // a page of the repository
		if err != nil {
			t.Fatal(err)
		}
		have[filepath.Base(f)] = string(text)
		if update {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if update {
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil { //nolint:gosec // a page of the repository
				t.Fatal(err)
			}
		}
		return
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("%s writes them (-want +have):\n%s", how, diff)
	}
}
