// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/plugins/ipam/dhcp"
)

// TestMain lets this test binary be the program.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_SLUICE_DHCP") != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func call(t *testing.T, verb string, args ...string) (text string, status int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, args...)
	c.Env = []string{"TEST_SLUICE_DHCP=1", "CNI_COMMAND=" + verb}
	out, err := c.CombinedOutput()
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

func TestProgram(t *testing.T) {
	t.Parallel()
	if got, status := call(t, "VERSION"); status != 0 || !strings.Contains(got, `"1.1.0"`) {
		t.Errorf("VERSION: status %d, %s", status, got)
	}
	if got, status := call(t, "ADD"); status != 1 || !strings.Contains(got, "CNI_CONTAINERID") {
		t.Errorf("ADD without an environment: status %d, %s", status, got)
	}
	if got, status := call(t, "", daemonCommand, "-socketpath", "/no/such/directory/socket", "-nonesuch"); status != 1 || !strings.Contains(got, "nonesuch") {
		t.Errorf("a wrong option: status %d, %s", status, got)
	}
	if got, status := call(t, "", daemonCommand, "-h"); status != 0 || !strings.Contains(got, "socketpath") {
		t.Errorf("help: status %d, %s", status, got)
	}
}

// What "sluice install" takes this program for.
func TestInstalledAs(t *testing.T) {
	t.Parallel()
	for _, p := range install.Programs() {
		if slices.Contains(p.Plugins, dhcp.Name) != (p.Name == install.DHCP) {
			t.Errorf("%s is %v", p.Name, p.Plugins)
		}
	}
}
