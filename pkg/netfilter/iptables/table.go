// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// table is one table as iptables-save prints it: the rules by chain, without
// the "-A CHAIN" in front. Rules are kept as they are printed, so that -D takes
// them back.
type table struct {
	chains map[string][]string
	policy map[string]string // of the chains that have one: ACCEPT or DROP
}

func parseTable(save string) table {
	t := table{chains: make(map[string][]string), policy: make(map[string]string)}
	for line := range strings.Lines(save) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, ":"):
			name, rest, _ := strings.Cut(line[1:], " ")
			t.chains[name] = t.chains[name][:0:0]
			if policy, _, _ := strings.Cut(rest, " "); policy != "-" {
				t.policy[name] = policy
			}
		case strings.HasPrefix(line, "-A "):
			chain, rule, _ := strings.Cut(line[len("-A "):], " ")
			t.chains[chain] = append(t.chains[chain], rule)
		}
	}
	return t
}

func (t table) has(chain string) bool {
	_, ok := t.chains[chain]
	return ok
}

// find returns the rules of a chain that contain all the words, each with its
// neighbours: "-j X" does not match "-j XY".
func (t table) find(chain string, words ...string) []string {
	var out []string
	for _, r := range t.chains[chain] {
		if containsAll(r, words) {
			out = append(out, r)
		}
	}
	return out
}

func containsAll(rule string, words []string) bool {
	padded := " " + rule + " "
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(padded, " "+w+" ") })
}

// script is the input of iptables-restore for one table.
type script struct {
	lines []string
}

func (s *script) add(format string, a ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, a...))
}

// ensureChain makes a shared chain. If another process makes it first, the
// whole script fails and is written anew. ":CHAIN" would flush that chain.
func (s *script) ensureChain(t table, chain string) {
	if !t.has(chain) {
		s.add("-N %s", chain)
	}
}

// ownChain makes or empties a chain of one attachment.
func (s *script) ownChain(chain string) { s.add(":%s - [0:0]", chain) }

// dropChain removes an attachment's chain and every rule that leads to it.
func (s *script) dropChain(t table, chain string) {
	if !t.has(chain) {
		return
	}
	for _, from := range slices.Sorted(maps.Keys(t.chains)) {
		for _, r := range t.chains[from] {
			if containsAll(r, []string{"-j " + chain}) {
				s.add("-D %s %s", from, r)
			}
		}
	}
	s.add("-F %s", chain)
	s.add("-X %s", chain)
}

func (s *script) empty() bool { return len(s.lines) == 0 }

func (s *script) input(table string) string {
	return "*" + table + "\n" + strings.Join(s.lines, "\n") + "\nCOMMIT\n"
}

// words splits a rule at spaces that are not inside double quotes, and removes
// the quotes and what escapes in them.
func words(rule string) []string {
	var (
		out    []string
		b      strings.Builder
		quoted bool
		any    bool
	)
	for i := 0; i < len(rule); i++ {
		switch c := rule[i]; {
		case c == '\\' && quoted && i+1 < len(rule):
			i++
			b.WriteByte(rule[i])
		case c == '"':
			quoted, any = !quoted, true
		case c == ' ' && !quoted:
			if b.Len() > 0 || any {
				out = append(out, b.String())
			}
			b.Reset()
			any = false
		default:
			b.WriteByte(c)
		}
	}
	if b.Len() > 0 || any {
		out = append(out, b.String())
	}
	return out
}

// comment returns the text of a rule's comment.
func comment(rule string) string {
	w := words(rule)
	if i := slices.Index(w, "--comment"); i >= 0 && i+1 < len(w) {
		return w[i+1]
	}
	return ""
}

// sameRule compares two rules whatever the order of their matches, and with or
// without the "-m tcp" that -p implies.
func sameRule(a, b string) bool {
	norm := func(r string) []string {
		w := words(r)
		out := make([]string, 0, len(w))
		for i := 0; i < len(w); i++ {
			if w[i] == "-m" && i+1 < len(w) {
				i++
				continue
			}
			out = append(out, w[i])
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(norm(a), norm(b))
}

// quote writes a word so that iptables-restore reads it as one.
func quote(w string) string {
	if w != "" && !strings.ContainsAny(w, " \t\"'\\") {
		return w
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
}

func quoteAll(w []string) string {
	out := make([]string, len(w))
	for i := range w {
		out[i] = quote(w[i])
	}
	return strings.Join(out, " ")
}
