// SPDX-License-Identifier: Apache-2.0

// Package sysctlallow is the list of sysctls that the tuning plugin may change: regular expressions, one a line. The helper matches
// them (package expr), on nodes that have a list: package regexp, with Unicode's tables, takes each process 2 % of an ADD to make ready.
package sysctlallow

import (
	"context"

	"github.com/sluice-cni/sluice/pkg/helperproc"
)

// Job is the helper's: Order in, Answer out.
const Job = "allowlist"

// Order is words, and expressions. Each word must match one of them.
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
	err = helperproc.Program{}.Call(ctx, Job, o, &a, nil, nil)
	return a, err
}
