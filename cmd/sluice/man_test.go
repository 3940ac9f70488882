// SPDX-License-Identifier: Apache-2.0

package main

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

const manFolder = "../../docs/man"

// manOption is an option as the library writes it: its text is not a paragraph of a list, but a line that begins with a tab.
var manOption = regexp.MustCompile(`(?m)(?:^\.PP\n)?^(\\fB-.*)\n\t(.*)\n`)

// manPages returns the man pages of all commands that help shows, by their file names. build/release puts version and date into them.
func manPages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
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
		text := manOption.ReplaceAllString(strings.Replace(buf.String(), "Jan 0001", "@DATE@", 1), ".TP\n$1\n$2\n")
		pages[name+".8"] = ".\\\" SPDX-License-Identifier: Apache-2.0\n" + text
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRoot(newApp(nil, nil))
	root.InitDefaultCompletionCmd()
	walk(root)
	return pages
}

// The man pages of the repository are those of the commands: -update writes them.
func TestManPages(t *testing.T) {
	want := manPages(t)
	files, err := filepath.Glob(manFolder + "/*.8")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		have[filepath.Base(f)] = string(text)
	}
	if *update {
		for name := range have {
			if err := os.Remove(filepath.Join(manFolder, name)); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(manFolder, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("go test ./cmd/sluice -run TestManPages -update writes them (-want +have):\n%s", diff)
	}
}
