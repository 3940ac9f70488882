// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/cmd/internal/fastversion"
	"github.com/sluice-cni/sluice/pkg/install"
)

// TestMain lets this test binary be the plugin binary under any name.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_SLUICE_CNI") != "" {
		main()
	}
	code := m.Run()
	if shipped != nil && shipped.Close() != nil {
		code = 1
	}
	os.Exit(code)
}

func call(t testing.TB, name string, env ...string) (stdout, stderr string, status int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	c := &exec.Cmd{Path: exe, Args: []string{"/some/where/" + name}, Env: append([]string{"TEST_SLUICE_CNI=1"}, env...), Stdout: &out, Stderr: &errs}
	if err := c.Run(); err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// The early answer must be what the plugin itself would say.
func TestVersion(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		p := plugin(name)
		if p == nil || p.Name != name {
			t.Errorf("%s is not wired", name)
			continue
		}
		var want bytes.Buffer
		if err := p.Versions.Encode(&want); err != nil {
			t.Fatal(err)
		}
		if got := fastversion.Answer(name); got != want.String() {
			t.Errorf("%s: the early answer is %q, the plugin says %q", name, got, want.String())
		}
		if got, _, status := call(t, name, "CNI_COMMAND=VERSION"); got != want.String() || status != 0 {
			t.Errorf("%s prints %q with status %d", name, got, status)
		}
	}
}

func TestNoCommand(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		out, errs, status := call(t, name)
		if out != "" || status != 0 || !strings.Contains(errs, name) || !strings.Contains(errs, "1.1.0") {
			t.Errorf("%s: status %d, stdout %q, stderr %q", name, status, out, errs)
		}
	}
	out, errs, status := call(t, install.Multicall)
	if out != "" || status != 0 {
		t.Errorf("status %d, stdout %q", status, out)
	}
	for _, name := range names() {
		if !strings.Contains(errs, name) {
			t.Errorf("the usage does not name %s", name)
		}
	}
}

func TestUnknownName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"win-bridge", "dhcp", install.Multicall, ""} {
		for _, verb := range []string{"ADD", "VERSION"} {
			out, _, status := call(t, name, "CNI_COMMAND="+verb)
			var e types.Error
			if err := json.Unmarshal([]byte(out), &e); err != nil || e.Code != 4 || status != 1 {
				t.Errorf("%q %s: status %d, stdout %q", name, verb, status, out)
			}
			if name == "dhcp" && !strings.Contains(e.Msg, install.DHCP) {
				t.Errorf("%q does not say where dhcp is", e.Msg)
			}
		}
	}
}

// A name of another program reaches it where both lie in one directory.
func TestOtherProgram(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	for name, program := range map[string]string{"dhcp": install.Multicall, "bridge": install.Multicall} {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		env  string
		args []string
		want string
	}{
		{"dhcp", "CNI_COMMAND=VERSION", nil, `"supportedVersions"`},
		{"dhcp", "", []string{"daemon", "-h"}, "socketpath"},
		{"bridge", "", nil, "bridge"},
	} {
		link := filepath.Join(dir, tt.name)
		c := &exec.Cmd{Path: link, Args: append([]string{link}, tt.args...), Env: []string{tt.env}}
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s %v: %v, %s", tt.env, tt.args, err, out)
		}
	}
}
