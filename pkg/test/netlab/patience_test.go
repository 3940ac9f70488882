// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"testing"
	"time"
)

func TestPatient(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": time.Second, "1": time.Second, "2.5": 2500 * time.Millisecond, "10": 10 * time.Second,
		"0.1": time.Second, "-3": time.Second, "many": time.Second,
	} {
		t.Setenv(EnvPatience, value)
		if got := Patient(time.Second); got != want {
			t.Errorf("%s=%q: %v, want %v", EnvPatience, value, got, want)
		}
	}
}

func TestFewer(t *testing.T) {
	wants := map[string][3]int{"": {100, 100, 5}, "4": {25, 40, 5}, "1000": {10, 40, 5}}
	if testing.Short() {
		wants = map[string][3]int{"": {10, 40, 5}, "1000": {10, 40, 5}}
	}
	for value, want := range wants {
		t.Setenv(EnvPatience, value)
		if got := [3]int{Fewer(100, 10), Fewer(100, 40), Fewer(5, 40)}; got != want {
			t.Errorf("%s=%q: %v, want %v", EnvPatience, value, got, want)
		}
	}
}
