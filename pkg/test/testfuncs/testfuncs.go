// SPDX-License-Identifier: Apache-2.0

// Package testfuncs finds the tests and fuzz targets of the repository by their
// names. The commands of test/fuzz and test/hostile run what it finds. It needs
// the go command, and reads sources only.
package testfuncs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Func is a test or a fuzz target.
type Func struct {
	// Dir is its package's directory, below the one that Find was asked in.
	Dir, Name string
}

func (f Func) String() string { return f.Dir + " " + f.Name }

var declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w+ \*testing\.[TF]\)`)

// Find returns all of the modules of the workspace around the current directory, sorted.
func Find(ctx context.Context) ([]Func, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", `{{.Dir}}{{range .TestGoFiles}} {{.}}{{end}}{{range .XTestGoFiles}} {{.}}{{end}}`, "work")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var all []Func
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		dir, err := filepath.Rel(here, fields[0])
		if err != nil {
			return nil, err
		}
		for _, file := range fields[1:] {
			source, err := os.ReadFile(filepath.Join(fields[0], file))
			if err != nil {
				return nil, err
			}
			for _, m := range declared.FindAllSubmatch(source, -1) {
				all = append(all, Func{dir, string(m[1])})
			}
		}
	}
	slices.SortFunc(all, func(a, b Func) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}
