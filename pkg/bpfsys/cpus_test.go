// SPDX-License-Identifier: Apache-2.0

package bpfsys

import "testing"

func TestParseCPUs(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]int{
		"0\n": 1, "0-3\n": 4, "0-1": 2, "0-0": 1, " 0-127 \n": 128, "0-65535": 65536,
		"": 0, "\n": 0, "1": 0, "3": 0, "1-3": 0, "0-": 0, "0-x": 0, "0--1": 0, "0-+3": 0, "0-3,5": 0, "0,2-3": 0,
		"00-3": 0, "0-65536": 0, "0-3-5": 0,
	} {
		got, err := parseCPUs(list)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %d, %v, want %d", list, got, err, want)
		}
	}
}
