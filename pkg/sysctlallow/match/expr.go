// SPDX-License-Identifier: Apache-2.0

// Package match matches the expressions of an allowlist, in the process that has package regexp.
package match

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/sysctlallow"
)

// Match is an sysctlallow.Matcher.
func Match(_ context.Context, o sysctlallow.Order) (sysctlallow.Answer, error) {
	list := make([]*regexp.Regexp, len(o.Expressions))
	for i, e := range o.Expressions {
		re, err := regexp.Compile(e)
		if err != nil {
			return sysctlallow.Answer{Bad: i + 1, Why: err.Error()}, nil //nolint:nilerr // it is the answer
		}
		list[i] = re
	}
	var a sysctlallow.Answer
	for _, word := range o.Words {
		a.Matched = append(a.Matched, slices.ContainsFunc(list, func(re *regexp.Regexp) bool { return re.MatchString(word) }))
	}
	return a, nil
}

// Jobs are what sysctlallow.ByHelper asks for.
func Jobs() map[string]helperproc.Job {
	return map[string]helperproc.Job{sysctlallow.Job: {Do: func(ctx context.Context, in json.RawMessage) (any, error) {
		var o sysctlallow.Order
		if err := json.Unmarshal(in, &o); err != nil {
			return nil, err
		}
		return Match(ctx, o)
	}}}
}
