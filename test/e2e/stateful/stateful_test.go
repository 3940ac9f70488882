// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestPrivilegedStateful plays each ruleset with upstream's plugins and with Sluice's. They agree in all that is seen, but for
// what is listed as deliberate.
func TestPrivilegedStateful(t *testing.T) {
	both := suites(t)
	sum := &summary{cells: map[string]map[string]tally{}, notes: map[string]string{}}
	t.Cleanup(func() { t.Log("\n" + sum.String()) })
	for _, r := range rulesets() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			seen := map[string]results{}
			var mu sync.Mutex
			var fast uint64
			t.Run("worlds", func(t *testing.T) {
				for _, su := range both {
					t.Run(su.name, func(t *testing.T) {
						t.Parallel()
						s := newStage(t, su, r)
						s.play()
						mu.Lock()
						defer mu.Unlock()
						seen[su.name] = s.seen
						if su.ours {
							fast = s.fast()
						}
					})
				}
			})
			if t.Failed() {
				return
			}
			if fast == 0 && !r.slow {
				t.Error("no packet took the fast path: this shows nothing of Sluice")
			}
			if !r.effective(seen["upstream"]) {
				t.Errorf("with upstream the rules do nothing: no outcome matches %q\n%s", r.bites, seen["upstream"])
			}
			for _, d := range r.compare(seen["upstream"], seen["sluice"], sum) {
				t.Error(d)
			}
			if testing.Verbose() {
				t.Logf("upstream:\n%ssluice:\n%s", seen["upstream"], seen["sluice"])
			}
			sum.note(r.name, fmt.Sprintf("%d packets fast", fast))
		})
	}
}

// refusals are verdicts of rules that let something not through.
const refusals = `^(times out|refused|reset|prohibited|lost|stops)$`

// effective reports that the rules did something with upstream.
func (r ruleset) effective(seen results) bool {
	bites := regexp.MustCompile(cmp.Or(r.bites, refusals))
	for _, o := range seen {
		if slices.ContainsFunc(o, func(ob observation) bool { return bites.MatchString(ob.value) }) {
			return true
		}
	}
	return false
}

func (rs results) String() string {
	var out strings.Builder
	for _, k := range rs.rows() {
		fmt.Fprintf(&out, "  %s, %s: %s\n", k.scenario, k.trial, rs[k])
	}
	return out.String()
}

func (o outcome) String() string {
	parts := make([]string, len(o))
	for i, ob := range o {
		parts[i] = ob.what + ": " + ob.value
	}
	return strings.Join(parts, "; ")
}

func (rs results) rows() []row {
	return slices.SortedFunc(maps.Keys(rs), func(a, b row) int {
		return cmp.Or(cmp.Compare(a.scenario, b.scenario), cmp.Compare(a.trial, b.trial))
	})
}

// compare says where Sluice is another than upstream without a listed reason, one text for the trials of a scenario that differ alike.
func (r ruleset) compare(upstream, ours results, sum *summary) (out []string) {
	all := maps.Clone(upstream)
	maps.Copy(all, ours)
	trials := map[string][]string{} // by what differs
	for _, k := range all.rows() {
		var lines []string
		excused := 0
		want, got := upstream[k], ours[k]
		for i := range max(len(want), len(got)) {
			w, g := at(want, i), at(got, i)
			switch {
			case w == g:
			case excuse(r.name, k, w, g):
				excused++
			default:
				lines = append(lines, fmt.Sprintf("    - upstream  %s: %s\n    + sluice    %s: %s", w.what, w.value, g.what, g.value))
			}
		}
		sum.count(r.name, k.scenario, len(lines) > 0, excused > 0)
		if len(lines) > 0 {
			text := fmt.Sprintf("%s, %s, %%s:\n%s", r.name, k.scenario, strings.Join(lines, "\n"))
			if trials[text] == nil {
				out = append(out, text)
			}
			trials[text] = append(trials[text], k.trial)
		}
	}
	for i, text := range out {
		out[i] = fmt.Sprintf(text, strings.Join(trials[text], " + "))
	}
	return out
}

func at(o outcome, i int) observation {
	if i < len(o) {
		return o[i]
	}
	return observation{"nothing more", "-"}
}

// excuse reports that a difference is listed.
func excuse(name string, k row, want, got observation) bool {
	return slices.ContainsFunc(differences, func(d difference) bool {
		for pattern, text := range map[string]string{d.ruleset: name, d.scenario: k.scenario, d.trial: k.trial, d.what: got.what, d.ours: got.value} {
			if ok, _ := path.Match(pattern, text); pattern != "" && !ok {
				return false
			}
		}
		return d.upstream == "" || d.upstream == want.value
	})
}

// tally counts the rows of a ruleset and a scenario.
type tally struct{ rows, different, excused int }

// summary is the table at the end.
type summary struct {
	mu    sync.Mutex
	cells map[string]map[string]tally
	notes map[string]string
}

func (s *summary) count(ruleset, scenario string, different, excused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cells[ruleset] == nil {
		s.cells[ruleset] = map[string]tally{}
	}
	c := s.cells[ruleset][scenario]
	c.rows++
	if different {
		c.different++
	} else if excused {
		c.excused++
	}
	s.cells[ruleset][scenario] = c
}

func (s *summary) note(ruleset, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes[ruleset] = text
}

// String is a line for each ruleset: what is the same and what differs, of how many rows.
func (s *summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.cells)) {
		fmt.Fprintf(&out, "%s (%s)\n", name, s.notes[name])
		for _, sc := range slices.Sorted(maps.Keys(s.cells[name])) {
			c := s.cells[name][sc]
			verdict := "same"
			if c.different > 0 {
				verdict = fmt.Sprintf("DIFFERENT in %d of %d", c.different, c.rows)
			} else if c.excused > 0 {
				verdict = fmt.Sprintf("different for a listed reason in %d of %d", c.excused, c.rows)
			}
			fmt.Fprintf(&out, "  %-45s %s\n", sc, verdict)
		}
	}
	return out.String()
}
