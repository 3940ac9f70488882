// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestGolden(t *testing.T) {
	tests := []struct {
		file  string
		width int
		args  string
	}{
		{"status.txt", 80, "status"},
		{"status-wide.txt", 0, "status -w"},
		{"status.json", 0, "status -o json"},
		{"hostports.txt", 80, "hostports"},
		{"hostports-wide.txt", 0, "hostports --wide"},
		{"hostports.json", 0, "hostports -o json"},
		{"endpoints.txt", 80, "endpoints"},
		{"endpoints-wide.txt", 0, "endpoints -w"},
		{"endpoints.json", 0, "endpoints -o json"},
		{"conntrack.txt", 0, "conntrack list"},
		{"conntrack-80.txt", 80, "conntrack list"},
		{"conntrack-wide.txt", 0, "conntrack list -w"},
		{"conntrack.json", 0, "conntrack list -o json"},
		{"monitor.txt", 0, "monitor"},
		{"drops.txt", 80, "drops"},
		{"drops.json", 0, "drops -o json"},
		{"nat-list.txt", 0, "nat list"},
		{"nat-list.json", 0, "nat list -o json"},
		{"nat-stats.txt", 0, "nat stats"},
		{"nat-flush.json", 0, "nat flush --pod 10.1.0.2 -o json"},
		{"conntrack-relearn.txt", 0, "conntrack relearn --proto tcp"},
		{"nat-pools.txt", 80, "nat pools"},
		{"nat-pools.json", 0, "nat pools -o json"},
		{"firewall.txt", 80, "firewall"},
		{"firewall-wide.txt", 0, "firewall -w"},
		{"firewall.json", 0, "firewall -o json"},
		{"deny-list.txt", 80, "deny list"},
		{"help-monitor.txt", 0, "monitor -h"},
		{"help.txt", 0, "-h"},
		{"help-conntrack.txt", 0, "conntrack list -h"},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			out, errs, status := runTool(t, newFakeNode(), tt.width, strings.Fields(tt.args)...)
			if status != 0 || errs != "" {
				t.Fatalf("exit status %d, stderr %q", status, errs)
			}
			golden(t, tt.file, out)
			for _, line := range strings.Split(out, "\n") {
				if line != strings.TrimRight(line, " ") {
					t.Errorf("space at the end of %q", line)
				}
			}
			if strings.HasSuffix(tt.file, ".json") {
				wantSnakeCase(t, out)
			}
		})
	}
}

var snake = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func wantSnakeCase(t *testing.T, text string) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not JSON: %v", err)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for k, e := range v {
				if !snake.MatchString(k) {
					t.Errorf("key %q is not snake_case", k)
				}
				walk(e)
			}
		}
	}
	walk(v)
}

func TestFitsEightyColumns(t *testing.T) {
	for _, cmd := range []string{"status", "hostports", "endpoints"} {
		out, _, _ := runTool(t, newFakeNode(), 80, cmd)
		for _, line := range strings.Split(out, "\n") {
			if n := utf8.RuneCountInString(line); n > 80 {
				t.Errorf("%s: %d columns: %s", cmd, n, line)
			}
		}
	}
}
