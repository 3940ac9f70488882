// SPDX-License-Identifier: Apache-2.0

// Package allowlist is the list of sysctls that the tuning plugin may change: regular expressions, one a line. The helper matches
// them (package expr), on nodes that have a list: package regexp, with Unicode's tables, takes each process 2 % of an ADD to make ready.
package allowlist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/sluice-cni/sluice/pkg/helper"
)

// Job is the helper's: Order in, Answer out.
const Job = "allowlist"

// Order is words and the expressions of which one has to match each.
type Order struct {
	Expressions []string `json:"expressions"`
	Words       []string `json:"words"`
}

// Answer says what came of it.
type Answer struct {
	Matched []bool `json:"matched,omitempty"` // one for each word
	Bad     int    `json:"bad,omitempty"`     // number of the first expression that is none, from 1 on; 0: all are
	Why     string `json:"why,omitempty"`
}

// Matcher carries an Order out.
type Matcher func(ctx context.Context, o Order) (Answer, error)

// ByHelper is the Matcher that asks the program beside this one.
func ByHelper(ctx context.Context, o Order) (a Answer, err error) {
	err = helper.Program{}.Ask(ctx, Job, o, &a, nil, nil)
	return a, err
}

// ExpressionError is about a line of the list.
type ExpressionError struct {
	File string
	Line int
	Why  string
}

// Error implements error.
func (e *ExpressionError) Error() string {
	return fmt.Sprintf("line %d of the sysctl allowlist %s is no expression", e.Line, e.File)
}

// First returns the first word that no expression of the file matches; empty when there is none, or no file: then everything is
// allowed. Expressions are not anchored. The error is an *ExpressionError where the list is wrong.
func First(ctx context.Context, file string, words []string, match Matcher) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	o := Order{Expressions: []string{}, Words: words}
	var lines []int
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			o.Expressions, lines = append(o.Expressions, line), append(lines, i+1)
		}
	}
	a, err := match(ctx, o)
	if err != nil {
		return "", err
	}
	if a.Bad > 0 && a.Bad <= len(lines) {
		return "", &ExpressionError{File: file, Line: lines[a.Bad-1], Why: a.Why}
	}
	for i, word := range words {
		if i >= len(a.Matched) || !a.Matched[i] {
			return word, nil
		}
	}
	return "", nil
}
