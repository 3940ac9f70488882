// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// shipped are the programs as they are shipped, once they were needed. TestMain removes them.
var shipped *testbin.Set

var buildShipped = sync.OnceValue(func() (err error) {
	shipped, err = testbin.Build()
	return err
})

// programs returns a directory with copies of the programs that implement the plugins.
func programs(t testing.TB) (dir string) {
	t.Helper()
	if err := buildShipped(); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, p := range install.Programs() {
		content, err := os.ReadFile(shipped.Path(p.Name))
		if err == nil {
			err = testbin.WriteScript(filepath.Join(dir, p.Name), string(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// installed installs every plugin into a directory, as "sluice install" does.
func installed(t *testing.T, from string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	syscall.ForkLock.RLock() // see testbin.WriteScript
	defer syscall.ForkLock.RUnlock()
	if _, err := install.Install(t.Context(), dir, install.Options{}, install.Sources(from, install.Plugins())...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// wantPlugins demands that each plugin but one answers VERSION, and names itself in its usage.
func wantPlugins(t *testing.T, dir, but, after string) {
	t.Helper()
	for _, name := range install.Plugins() {
		if name == but {
			continue
		}
		c := &exec.Cmd{Path: filepath.Join(dir, name), Env: []string{"CNI_COMMAND=VERSION"}}
		if out, err := c.Output(); err != nil || !bytes.HasPrefix(out, []byte(`{"cniVersion":"1.1.0","supportedVersions":[`)) {
			t.Errorf("%s, %s: VERSION: %v, %q", after, name, err, out)
		}
	}
}

// Each plugin is started through its file and is itself.
func TestInstalledPlugins(t *testing.T) {
	t.Parallel()
	dir := installed(t, programs(t))
	wantPlugins(t, dir, "", "install")
	for _, name := range install.Plugins() {
		out, err := (&exec.Cmd{Path: filepath.Join(dir, name), Args: []string{"anything"}, Env: []string{}}).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "CNI "+name+" plugin") && !strings.Contains(string(out), " "+name+" ") {
			t.Errorf("%s: %v, %q", name, err, out)
		}
	}
	// A file of the wrong name under the multi-call program is an error object that names it.
	wrong := filepath.Join(dir, "win-bridge")
	writePlugin(t, wrong, "#!"+filepath.Join(dir, install.Multicall)+"\n")
	out, err := (&exec.Cmd{Path: wrong, Env: []string{"CNI_COMMAND=ADD"}}).Output()
	if err == nil || !strings.Contains(string(out), `"code":4`) && !strings.Contains(string(out), `"code": 4`) {
		t.Errorf("win-bridge: %v, %s", err, out)
	}
}

// Installers of other suites replace one name in many ways. The other plugins do not notice, whichever name it is.
func TestCopyOverOnePlugin(t *testing.T) {
	t.Parallel()
	from, foreign := programs(t), filepath.Join(t.TempDir(), "foreign")
	writePlugin(t, foreign, "#!/bin/sh\necho foreign\n")
	command := func(name string, args ...string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			if out, err := exec.Command(name, append(args, foreign, path)...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v, %s", name, err, out)
			}
		}
	}
	for how, replace := range map[string]func(t *testing.T, path string){
		"cp -f":      command("cp", "-f"),
		"cp -a":      command("cp", "-a"),
		"install(1)": command("install", "-m", "755"),
		"ln -sf":     command("ln", "-sf"),
		"in place":   inPlace, // rsync --inplace, a shell's redirection
		"tar":        untar,
		"dpkg upgrade": func(t *testing.T, path string) {
			t.Helper()
			command("cp", "-f")(t, path+".dpkg-new")
			if err := os.Rename(path+".dpkg-new", path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := installed(t, from)
			for _, name := range install.Plugins() {
				if name == install.IPAM { // a program, whose name no other suite has
					continue
				}
				path := filepath.Join(dir, name)
				before, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				replace(t, path)
				if out, err := exec.Command(path).Output(); err != nil || string(out) != "foreign\n" {
					t.Fatalf("%s was not replaced: %v, %q", name, err, out)
				}
				wantPlugins(t, dir, name, how+" over "+name)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				writePlugin(t, path, string(before))
			}
		})
	}
}

func inPlace(t *testing.T, path string) {
	t.Helper()
	writePlugin(t, path, "#!/bin/sh\necho foreign\n")
}

func writePlugin(t *testing.T, path, content string) {
	t.Helper()
	if err := testbin.WriteScript(path, content); err != nil {
		t.Fatal(err)
	}
}

// untar unpacks an archive with the plugin's name over it.
func untar(t *testing.T, path string) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	content := "#!/bin/sh\necho foreign\n"
	if err := w.WriteHeader(&tar.Header{Name: filepath.Base(path), Mode: 0o755, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("tar", "-x", "-C", filepath.Dir(path))
	c.Stdin = &archive
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v, %s", err, out)
	}
}
