// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every command of "sluice ipam" runs the program with what it was given, and ends as the program does. What the program
// does is tested in plugins/ipam/cluster.
func TestIPAM(t *testing.T) {
	program := filepath.Join(t.TempDir(), "store")
	script := "#!/bin/sh\necho \"$@\"\ncase \"$*\" in *wrong*) echo no such pool >&2; exit 1;; esac\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args   string
		want   []string
		status int
	}{
		{"ipam pools", []string{"pools", "-output table"}, 0},
		{"ipam pools -o json --conf /c --kubeconfig /k --data-dir /d", []string{"-output json", "-conf /c", "-kubeconfig /k", "-data-dir /d"}, 0},
		{"ipam list --pool p", []string{"list", "-pool p"}, 0},
		{"ipam list --pool wrong", []string{"no such pool"}, 1},
		{"ipam check --yes", []string{"check", "-yes"}, 0},
		{"ipam release --pool p 10.0.0.1 --yes", []string{"release", "-pool p", "-yes", " 10.0.0.1"}, 0},
		{"ipam release --node n --unused --to-whereabouts", []string{"-node n", "-unused", "-to-whereabouts"}, 0},
		{"ipam import --yes --network-name w", []string{"import", "-yes", "-network-name w"}, 0},
		{"ipam import x", []string{"takes no arguments"}, 1},
		{"ipam", []string{"Available Commands"}, 0},
	} {
		args := append(strings.Fields(tc.args), "--program", program)
		if tc.args == "ipam" {
			args = args[:1]
		}
		out, errs, status := runTool(t, newFakeNode(), 0, args...)
		if status != tc.status {
			t.Errorf("%s: status %d: %s%s", tc.args, status, out, errs)
		}
		for _, want := range tc.want {
			if !strings.Contains(out+errs, want) {
				t.Errorf("%s: no %q in %q %q", tc.args, want, out, errs)
			}
		}
	}
	if _, errs, status := runTool(t, newFakeNode(), 0, "ipam", "pools", "--program", "/no/such"); status != 1 || !strings.Contains(errs, "sluice install") {
		t.Errorf("without the program: %d %s", status, errs)
	}
}
