// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const readmeFile = "../README.md"

// source is a source file of /bpf with its object.
type source struct {
	file, hook string
	part       part
}

// sources are in the order of a packet's way.
func sources() []source {
	hooks := map[string]string{
		"sl_from_pod":     "host veth, tc ingress",
		"sl_to_pod":       "host veth, tc egress",
		"sl_from_uplink":  "uplink, tc ingress",
		"sl_to_uplink":    "uplink, tc egress",
		"sl_ns_egress":    "pod's device in its netns, tc egress",
		"sl_ns_ingress":   "pod's device in its netns, tc ingress",
		"sl_edt":          "device with fq, tc egress; host veth, tc ingress",
		"sl_mac_check":    "host veth with macspoofchk, tc ingress",
		"sl_parent":       "parent of a pod's macvlan, ipvlan or vlan device, tc egress and ingress",
		"sl_xdp_denylist": "uplink, XDP",
		"sl_socklb":       "root of cgroup v2, socket calls",
	}
	files := map[string]string{"sl_ns_egress": "podns_egress", "sl_ns_ingress": "podns_ingress"}
	var out []source
	for _, p := range append(slices.Clone(parts), xdp, sockets) {
		file := files[p.name]
		if file == "" {
			file = strings.TrimPrefix(p.name, "sl_")
		}
		out = append(out, source{file + ".bpf.c", hooks[p.name], p})
	}
	return out
}

var includeLine = regexp.MustCompile(`(?m)^#include "([^"]+)"`)

// included returns the headers below lib that a file names.
func included(t *testing.T, file string) (out []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", file))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range includeLine.FindAllStringSubmatch(string(raw), -1) {
		out = append(out, strings.TrimPrefix(filepath.Join(filepath.Dir(file), m[1]), "lib/"))
	}
	return out
}

// allHeaders returns every header below lib.
func allHeaders(t *testing.T) (out []string) {
	t.Helper()
	files, err := filepath.Glob("../lib/*/*.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		out = append(out, strings.TrimPrefix(f, "../lib/"))
	}
	return out
}

// table writes a table in Markdown.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(head)))
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

func quoted(s string) string { return "`" + s + "`" }

// tablesOfREADME returns the generated parts by their name.
func tablesOfREADME(t *testing.T) map[string]string {
	t.Helper()
	var programs [][]string
	for _, s := range sources() {
		spec, err := s.part.load()
		if err != nil {
			t.Fatal(err)
		}
		names := slices.Sorted(maps.Keys(spec.Programs))
		for i, n := range names {
			names[i] = quoted(n)
		}
		programs = append(programs, []string{fmt.Sprintf("[`%s`](%s)", s.file, s.file), strings.Join(names, ", "), s.hook})
	}
	return map[string]string{
		"programs": table([]string{"source", "programs", "hook"}, programs),
		"folders":  foldersOfREADME(t),
	}
}

// folderIncludes returns which folders each folder below lib includes.
func folderIncludes(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	for _, h := range allHeaders(t) {
		from := filepath.Dir(h)
		if out[from] == nil {
			out[from] = map[string]bool{}
		}
		for _, i := range included(t, filepath.Join("lib", h)) {
			if to := filepath.Dir(i); to != from {
				out[from][to] = true
			}
		}
	}
	return out
}

func foldersOfREADME(t *testing.T) string {
	t.Helper()
	about := map[string]string{
		"base":      "types, load-time constants, addresses, time, per-CPU caches",
		"packet":    "the fast and the full parser, rewriting, ICMP errors, fragments",
		"endpoint":  "pods, their devices and counters, the node's addresses and uplinks",
		"drop":      "drops: reasons, counters, events",
		"conntrack": "conntrack entries: lookup, states, timeouts",
		"hostport":  "published ports and their allowlists",
		"nat":       "masquerade, hairpin, pod-side SNAT, client ports, the node's own sockets",
		"fastpath":  "the redirect past the stack",
		"policy":    "admission: ingressPolicy and rules",
		"podns":     "devices inside a pod's network namespace",
		"denylist":  "the denylist",
		"edt":       "rate limits by earliest departure time",
		"socklb":    "hostPorts for the node's own processes",
	}
	var rows [][]string
	graph := folderIncludes(t)
	for _, folder := range slices.Sorted(maps.Keys(graph)) {
		if about[folder] == "" {
			t.Errorf("folder %s is new: say what it is for", folder)
		}
		includes := slices.Sorted(maps.Keys(graph[folder]))
		for i, name := range includes {
			includes[i] = quoted(name)
		}
		rows = append(rows, []string{quoted("lib/" + folder), about[folder], strings.Join(includes, ", ")})
	}
	return table([]string{"folder", "what it holds", "includes"}, rows)
}

// The tables of bpf/README.md are those of the sources. -update writes them.
func TestREADME(t *testing.T) {
	raw, err := os.ReadFile(readmeFile)
	if err != nil {
		t.Fatal(err)
	}
	want := string(raw)
	for name, text := range tablesOfREADME(t) {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(want, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no place for %s", readmeFile, name)
		}
		want = before + begin + text + end + after
	}
	if *update {
		if err := os.WriteFile(readmeFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(raw) {
		t.Errorf("%s is not what the sources say: run make generate", readmeFile)
	}
}

// Folders below lib form layers: no folder includes itself through others.
func TestFoldersAreLayers(t *testing.T) {
	graph := folderIncludes(t)
	var reach func(from, to string, seen map[string]bool) bool
	reach = func(from, to string, seen map[string]bool) bool {
		for next := range graph[from] {
			if next == to || !seen[next] && func() bool { seen[next] = true; return reach(next, to, seen) }() {
				return true
			}
		}
		return false
	}
	for folder := range graph {
		if reach(folder, folder, map[string]bool{}) {
			t.Errorf("folder %s includes itself through others", folder)
		}
	}
}
