// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// readAllowlist returns the expressions of the allowlist, one a line; nil, nil
// when there is no file: everything is allowed then.
func readAllowlist(file string) ([]*regexp.Regexp, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeIO, err, "read the sysctl allowlist")
	}
	list := []*regexp.Regexp{}
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			return nil, cnierr.New(cnierr.CodeConfig, fmt.Sprintf("line %d of the sysctl allowlist %s is no expression", i+1, file), err.Error())
		}
		list = append(list, re)
	}
	return list, nil
}

// allowed refuses the first key that no expression of the allowlist matches.
// Expressions are not anchored and see the key as it was written.
func (p *plugin) allowed(sysctls []sysctlPair) error {
	if len(sysctls) == 0 {
		return nil
	}
	list, err := readAllowlist(p.Allowlist)
	if err != nil || list == nil {
		return err
	}
next:
	for _, s := range sysctls {
		for _, re := range list {
			if re.MatchString(s.given) {
				continue next
			}
		}
		return cnierr.Config("sysctl", s.given, "is not on the node's allowlist "+p.Allowlist)
	}
	return nil
}
