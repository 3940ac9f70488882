// SPDX-License-Identifier: Apache-2.0

package result

import "strings"

// folded returns the tests of a suite, where one whose subtests were all
// skipped for the same feature takes their place: go test says that it passed,
// but nothing of it ran.
func (s *Suite) folded() []*Test {
	leaves := map[string][]*Test{} // below each test that has subtests
	for _, t := range s.Tests {
		if s.hasChildren(t.Name) {
			continue
		}
		for i, c := range t.Name {
			if c == '/' {
				leaves[t.Name[:i]] = append(leaves[t.Name[:i]], t)
			}
		}
	}
	var out []*Test
	var inside []string
	for _, t := range s.Tests {
		if below(t.Name, inside) {
			continue
		}
		if feature := common(leaves[t.Name]); feature != "" && t.Status == Pass {
			inside = append(inside, t.Name+"/")
			t = &Test{Name: t.Name, Status: Skip, Seconds: t.Seconds, Missing: feature}
		}
		out = append(out, t)
	}
	return out
}

func (s *Suite) hasChildren(name string) bool {
	if s.parents == nil {
		s.parents = map[string]bool{}
		for _, t := range s.Tests {
			for i, c := range t.Name {
				if c == '/' {
					s.parents[t.Name[:i]] = true
				}
			}
		}
	}
	return s.parents[name]
}

// common returns the feature that all of tests were skipped for, "" if there is
// none.
func common(tests []*Test) string {
	feature := ""
	for i, t := range tests {
		if t.Status != Skip || i > 0 && t.Missing != feature {
			return ""
		}
		feature = t.Missing
	}
	return feature
}

func below(name string, parents []string) bool {
	for _, p := range parents {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
