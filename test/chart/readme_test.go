// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

const tableHead = "| key | default | meaning |\n|---|---|---|\n"

// table makes the table of values: the comment above a key of values.yaml says what it means.
func table(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile(Dir + "/values.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	values := defaults(tb)
	line := regexp.MustCompile(`^( *)([A-Za-z][A-Za-z0-9]*):`)
	out, comment := tableHead, ""
	var path []string
	covered := 0
	for l := range strings.Lines(string(text)) {
		if c, ok := strings.CutPrefix(strings.TrimSpace(l), "# "); ok {
			comment = strings.TrimSpace(comment + " " + c)
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			comment = ""
			continue
		}
		path = append(path[:len(m[1])/2], m[2])
		key := strings.Join(path, ".")
		value, ok := values[key]
		if !ok || strings.HasPrefix(key, "resources.") || strings.HasPrefix(key, "nodeSelector.") {
			continue // a key inside a default
		}
		covered++
		if comment == "" {
			if _, table := value.(map[string]any); !table {
				tb.Errorf("values.yaml: no comment above %s", key)
			}
			continue // an object of values
		}
		if m, table := value.(map[string]any); table && len(m) > 0 && key != "nodeSelector" && key != "resources" {
			comment = ""
			continue
		}
		def, err := json.Marshal(value)
		if err != nil {
			tb.Fatal(err)
		}
		out += fmt.Sprintf("| `%s` | `%s` | %s |\n", key, def, comment)
		comment = ""
	}
	if covered < 50 {
		tb.Errorf("%d values", covered)
	}
	return out
}

// The chart's README has each value, with its default and what it means.
func TestReadme(t *testing.T) {
	path := Dir + "/README.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	start := strings.Index(string(text), tableHead)
	if start < 0 {
		t.Fatal("README.md has no table of values")
	}
	end := start + strings.Index(string(text[start:])+"\n\n", "\n\n") + 1
	want := string(text[:start]) + table(t) + string(text[min(end, len(text)):])
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(text) {
		t.Error("README.md is not as values.yaml says: run make chart-generate")
	}
}
