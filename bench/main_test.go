// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseInts(t *testing.T) {
	tests := []struct {
		in   string
		want []int
		ok   bool
	}{
		{"2,250", []int{2, 250}, true},
		{"1", []int{1}, true},
		{"", nil, false},
		{"0", nil, false},
		{"2,", nil, false},
		{"two", nil, false},
	}
	for _, tt := range tests {
		got, err := parseInts(tt.in)
		if d := cmp.Diff(tt.want, got); d != "" || (err == nil) != tt.ok {
			t.Errorf("%q: %v %s", tt.in, err, d)
		}
	}
}

func TestSummarise(t *testing.T) {
	calls := []call{
		{"bridge", "ADD", 3, 1, 1}, {"bridge", "ADD", 9, 2, 2}, {"bridge", "ADD", 5, 3, 3},
		{"bridge", "DEL", 100, 0, 0}, {"portmap", "ADD", 7, 0, 0},
	}
	want := call{"bridge", "ADD", 5 * time.Nanosecond, 2, 2}
	if d := cmp.Diff(want, summarise(calls, "bridge", "ADD"), cmp.AllowUnexported(call{})); d != "" {
		t.Error(d)
	}
	if got := summarise(calls, "firewall", "ADD").wall; got != 0 {
		t.Errorf("no calls, but %s", got)
	}
}
