// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestMonitorFilters(t *testing.T) {
	for args, want := range map[string]int{
		"":                           3,
		"--reason spoofed-ip":        1,
		"--pod 10.9.9.9":             1,
		"--pod fd00:1::3":            1,
		"--pod 3f1c":                 1,
		"--pod 4":                    0,
		"--device eth0":              2,
		"--limit 2":                  2,
		"--pod 3f1c --device eth0":   0,
		"--reason ports-exhausted":   2,
		"--reason denied --limit 10": 0,
	} {
		out, errs, status := runTool(t, newFakeNode(), 0, append([]string{"monitor", "-o", "json"}, strings.Fields(args)...)...)
		if status != 0 {
			t.Fatalf("%q: %s", args, errs)
		}
		got := 0
		for line := range strings.Lines(out) {
			var v dropEventView
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%q: %v in %q", args, err, line)
			}
			if v.Reason != "" {
				got++
			}
		}
		if got != want {
			t.Errorf("%q: %d packets, want %d", args, got, want)
		}
	}
}

// Where nothing is loaded there is no object, so no line either.
func TestMonitorNotLoaded(t *testing.T) {
	for args, want := range map[string]string{"monitor -o json": "", "monitor": notLoaded + "\n"} {
		if out, errs, status := runTool(t, &fakeNode{}, 0, strings.Fields(args)...); out != want || status != 0 {
			t.Errorf("%s: %q, %q", args, out, errs)
		}
	}
}

func TestMonitorRefuses(t *testing.T) {
	for _, args := range []string{"monitor --reason nonsense", "nat flush", "flows flush --pod x", "drops --reason none"} {
		if _, _, status := runTool(t, newFakeNode(), 0, strings.Fields(args)...); status == 0 {
			t.Errorf("%s: no error", args)
		}
	}
}
