// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var conf = flag.String("conf", "", "/etc/sluice/config.json of every ruleset, to try another way: with fastPath off all but the listed is the same")

// TestPrivilegedStateful plays each ruleset with upstream's plugins and with Sluice's. They agree in all that is seen, but for
// what is listed as deliberate.
func TestPrivilegedStateful(t *testing.T) {
	both := suites(t)
	sum := &summary{cells: map[string]map[string]tally{}, notes: map[string]string{}}
	t.Cleanup(func() { t.Log("\n" + sum.String()) })
	for _, r := range rulesets() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			p, ok := r.play(t, "worlds", both)
			if !ok {
				return
			}
			if p.fast == 0 && !r.slow && *conf == "" {
				t.Error("no packet took the fast path: this shows nothing of Sluice")
			}
			if !r.effective(p.upstream) {
				t.Errorf("with upstream the rules do nothing: no outcome matches %q\n%s", cmp.Or(r.bites, refusals), p.upstream)
			}
			different := p.different(r)
			// A machine that is busy elsewhere makes a few rows differ, and other ones the next time. A difference of ours is there each time.
			for n := 0; n < 3 && len(different) > 0 && len(different) <= len(p.upstream)/2; n++ {
				again, ok := r.play(t, "worlds again", both)
				if !ok {
					return
				}
				next := again.different(r)
				maps.DeleteFunc(different, func(k row, text string) bool {
					gone := next[k] == ""
					if gone {
						t.Logf("not seen again: %s, %s:\n%s", k.scenario, k.trial, text)
					}
					return gone
				})
			}
			for _, text := range grouped(different) {
				t.Errorf("%s, %s", r.name, text)
			}
			if testing.Verbose() {
				t.Logf("upstream:\n%ssluice:\n%s", p.upstream, p.ours)
			}
			sum.add(r, p, different)
		})
	}
}

// pair is what was seen in the two worlds of a ruleset, and how many packets Sluice's fast path carried.
type pair struct {
	upstream, ours results
	fast           uint64
}

// play plays a ruleset in two worlds at once. ok says that nothing stood in the way.
func (r ruleset) play(t *testing.T, name string, both []suite) (p pair, ok bool) {
	var mu sync.Mutex
	ok = t.Run(name, func(t *testing.T) {
		for _, su := range both {
			t.Run(su.name, func(t *testing.T) {
				t.Parallel()
				s := newStage(t, su, r)
				s.play()
				mu.Lock()
				defer mu.Unlock()
				if su.ours {
					p.ours, p.fast = s.seen, s.fast()
				} else {
					p.upstream = s.seen
				}
			})
		}
	})
	return p, ok
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

// different has what differs for no listed reason, by row.
func (p pair) different(r ruleset) map[row]string {
	out := map[row]string{}
	for k := range p.all() {
		if lines, _ := p.compare(r, k); len(lines) > 0 {
			out[k] = strings.Join(lines, "\n")
		}
	}
	return out
}

// all are the rows of both worlds.
func (p pair) all() results {
	all := maps.Clone(p.upstream)
	maps.Copy(all, p.ours)
	return all
}

// compare says what differs in a row, and how much does so for a listed reason.
func (p pair) compare(r ruleset, k row) (lines []string, excused int) {
	want, got := p.upstream[k], p.ours[k]
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
	return lines, excused
}

// grouped words differences, one text for the trials of a scenario that differ alike.
func grouped(different map[row]string) (out []string) {
	trials := map[row][]string{} // by scenario and what differs
	for k, text := range different {
		trials[row{k.scenario, text}] = append(trials[row{k.scenario, text}], k.trial)
	}
	for k, names := range trials {
		slices.Sort(names)
		out = append(out, fmt.Sprintf("%s, %s:\n%s", k.scenario, strings.Join(names, " + "), k.trial))
	}
	slices.Sort(out)
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

// add takes in what was seen of a ruleset.
func (s *summary) add(r ruleset, p pair, different map[row]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cells := map[string]tally{}
	for k := range p.all() {
		c := cells[k.scenario]
		c.rows++
		if different[k] != "" {
			c.different++
		} else if _, excused := p.compare(r, k); excused > 0 {
			c.excused++
		}
		cells[k.scenario] = c
	}
	s.cells[r.name], s.notes[r.name] = cells, fmt.Sprintf("%d packets fast", p.fast)
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
