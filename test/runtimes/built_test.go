// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// What is tested beside Debian's containerd.
var (
	built       = flag.Bool("built", false, "test with containerd "+containerdVersion+" too, built from its source")
	withKubelet = flag.Bool("kubelet", false, "test with kubelet "+kubeletVersion+" too, built from its source, which takes long")
)

// target is what runs the tests that these flags ask for.
const target = "make runtimes"

const (
	containerdVersion = "v2.4.2"
	containerdModule  = "github.com/containerd/containerd/v2"
	kubeletVersion    = "v1.37.2"
	kubeletModule     = "k8s.io/kubernetes"
	// stagingVersion is that of the modules which kubelet's own replaces by directories beside it.
	stagingVersion = "v0.37.2"
)

var buildContainerd = sync.OnceValues(func() (string, error) {
	p := program{
		module: containerdModule, version: containerdVersion, flags: []string{"-tags", "no_btrfs,no_devmapper,no_zfs"},
		link:     "-X " + containerdModule + "/version.Version=" + containerdVersion,
		packages: []string{"cmd/containerd-shim-runc-v2", "cmd/ctr", "cmd/containerd"},
	}
	return p.build()
})

var buildKubelet = sync.OnceValues(func() (string, error) {
	p := program{
		module: kubeletModule, version: kubeletVersion, staging: stagingVersion, flags: []string{"-p", "2"},
		link:     "-X k8s.io/component-base/version.gitVersion=" + kubeletVersion,
		packages: []string{"cmd/kubelet"},
	}
	return p.build()
})

// program is built by the go command from a module of others.
type program struct {
	module, version string
	staging         string // the version of what the module replaces, "" where it replaces nothing
	flags           []string
	link            string
	packages        []string // below the module; when the last is there, all are
}

// build returns the directory of the programs, which it fills once, in the user's cache.
func (p program) build() (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	name := filepath.Base(p.packages[len(p.packages)-1])
	dir = filepath.Join(cache, "sluice-bench", name+"-"+p.version)
	if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
		return dir, nil
	}
	fmt.Fprintln(os.Stderr, "building", name, p.version+", once, into", dir)
	// In a module of its own: go install takes no module that replaces others, and no tags of ours.
	module, err := os.MkdirTemp("", "sluice-"+name+"-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(module)) }()
	run := func(args ...string) (string, error) {
		cmd := exec.Command("go", args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return string(out), nil
	}
	if _, err := run("mod", "init", "built"); err != nil {
		return "", err
	}
	if p.staging != "" {
		if err := p.replace(run); err != nil {
			return "", err
		}
	}
	get, install := []string{"get"}, slices.Concat([]string{"install", "-trimpath", "-ldflags", "-s -w " + p.link}, p.flags)
	for _, pkg := range p.packages {
		get = append(get, p.module+"/"+pkg+"@"+p.version)
		install = append(install, p.module+"/"+pkg)
	}
	for _, args := range [][]string{get, install} {
		if _, err := run(args...); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// replace has the modules that p replaces by directories come from the proxy: they are published too.
func (p program) replace(run func(...string) (string, error)) error {
	said, err := run("mod", "download", "-json", p.module+"@"+p.version)
	if err != nil {
		return err
	}
	var downloaded struct{ GoMod string }
	// Before it, the go command may say what it downloads.
	if err := json.Unmarshal([]byte(said[strings.Index(said, "{"):]), &downloaded); err != nil {
		return err
	}
	text, err := os.ReadFile(downloaded.GoMod)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == "v0.0.0" {
			if _, err := run("mod", "edit", "-replace="+f[0]+"="+f[0]+"@"+p.staging); err != nil {
				return err
			}
		}
	}
	return nil
}

// builtContainerd returns the directory of containerd's programs.
func builtContainerd(t *testing.T) string { return mustBuild(t, buildContainerd) }

// builtKubelet returns the directory of kubelet.
func builtKubelet(t *testing.T) string { return mustBuild(t, buildKubelet) }

func mustBuild(t *testing.T, build func() (string, error)) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
