// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The program is all plugins that it is laid under the names of.
func TestNames(t *testing.T) {
	for _, name := range program().Names() {
		if p := program().Plugin(name); p == nil || p.Name != name {
			t.Errorf("%s is not wired", name)
		}
	}
}

// What makes a program slow to start must not come in by some import.
func TestLight(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := "\n" + string(out)
	for _, heavy := range []string{"github.com/cilium/ebpf", "github.com/godbus/dbus", "encoding/xml", "encoding/gob", "regexp", "net/rpc"} {
		if strings.Contains(deps, "\n"+heavy) {
			t.Errorf("it imports %s", heavy)
		}
	}
}
