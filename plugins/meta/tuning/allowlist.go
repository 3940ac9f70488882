// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/sysctlallow"
)

// readAllowlist returns the expressions of the allowlist and the numbers of their
// lines; false when there is no file: everything is allowed then.
func readAllowlist(file string) (expressions []string, lines []int, ok bool, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, cnierr.Wrap(cnierr.CodeIO, err, "read the sysctl allowlist")
	}
	for i, line := range strings.Split(string(b), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			expressions, lines = append(expressions, line), append(lines, i+1)
		}
	}
	return expressions, lines, true, nil
}

// allowed refuses the first key that no expression of the allowlist matches.
// Expressions are not anchored and see the key as it was written.
func (p *plugin) allowed(ctx context.Context, sysctls []sysctlPair) error {
	if len(sysctls) == 0 {
		return nil
	}
	expressions, lines, ok, err := readAllowlist(p.Allowlist)
	if err != nil || !ok {
		return err
	}
	o := sysctlallow.Order{Expressions: expressions}
	for _, s := range sysctls {
		o.Words = append(o.Words, s.given)
	}
	a, err := p.Match(ctx, o)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeIO, err, "match the sysctl allowlist")
	}
	if a.Bad > 0 {
		return cnierr.New(cnierr.CodeConfig, fmt.Sprintf("line %d of the sysctl allowlist %s is no expression", lines[a.Bad-1], p.Allowlist), a.Why)
	}
	for i, key := range o.Words {
		if !a.Matched[i] {
			return cnierr.Config("sysctl", key, "is not on the node's allowlist "+p.Allowlist)
		}
	}
	return nil
}
