// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/testfuncs"
)

// page is a file with a table of rows.
type page struct {
	file, after string
	text, tests int // columns
	kind        string
}

// row is a promise or a class, with the tests that it names.
type row struct {
	kind, text string
	funcs      []testfuncs.Func
	missing    []string // patterns that match no test
	// excused says that the row tells why there can be no test.
	excused bool
}

var (
	named   = regexp.MustCompile("`((?:Test|Fuzz)[\\w*]+)`")
	heading = regexp.MustCompile(`(?m)^#{1,6} .*$`)
)

// rows reads the table of a page.
func (p page) rows(text string, funcs []testfuncs.Func) ([]row, error) {
	_, rest, ok := strings.Cut(text, p.after+"\n")
	if !ok {
		return nil, fmt.Errorf("%s has no %q", p.file, p.after)
	}
	if i := heading.FindStringIndex(rest); i != nil {
		rest = rest[:i[0]]
	}
	var rows []row
	head := true
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		switch {
		case !strings.HasPrefix(line, "|"):
			continue
		case strings.HasPrefix(line, "|---"):
			head = false
			continue
		case head:
			continue
		case len(cells) <= p.tests:
			return nil, fmt.Errorf("%s: a row of %d columns: %s", p.file, len(cells), line)
		}
		r := row{kind: p.kind, text: strings.TrimSpace(cells[p.text])}
		about := strings.TrimSpace(strings.Join(cells[p.tests:], " | "))
		r.excused = strings.HasPrefix(about, "Not applicable: ")
		for _, m := range named.FindAllStringSubmatch(about, -1) {
			r.name(m[1], funcs)
		}
		rows = append(rows, r)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("%s: no table below %q", p.file, p.after)
	}
	return rows, nil
}

// name adds the tests that a pattern stands for.
func (r *row) name(pattern string, funcs []testfuncs.Func) {
	found := false
	for _, f := range funcs {
		if ok, err := path.Match(pattern, f.Name); err == nil && ok {
			found = true
			if !slices.Contains(r.funcs, f) {
				r.funcs = append(r.funcs, f)
			}
		}
	}
	if !found {
		r.missing = append(r.missing, pattern)
	}
}

// judge returns what is wrong with a row, which features the kernel lacks for its tests, and which tests are left to targets of their own.
// Those alone do not make a row hold.
func (r *row) judge(outcomes map[testfuncs.Func]outcome) (wrong, needs, left []string) {
	if len(r.funcs) == 0 && !r.excused {
		wrong = append(wrong, "it names no test")
	}
	for _, pattern := range r.missing {
		wrong = append(wrong, pattern+": there is no such test")
	}
	for _, f := range r.funcs {
		switch o := outcomes[f]; {
		case o.result == passed:
		case len(o.needs) > 0:
			needs = append(needs, fmt.Sprintf("%s: needs kernel feature %s", f, strings.Join(o.needs, ", ")))
		case o.left != "":
			left = append(left, fmt.Sprintf("%s: left to %s", f, o.left))
		case o.result == "":
			wrong = append(wrong, fmt.Sprintf("%s: did not run", f))
		default:
			wrong = append(wrong, fmt.Sprintf("%s: %s", f, o.result))
		}
	}
	if len(left) > 0 && len(left) == len(r.funcs) {
		wrong = append(wrong, "nothing of it runs here")
	}
	return wrong, needs, left
}
