// SPDX-License-Identifier: Apache-2.0

package kubebin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
)

// Dir is where the programs of this version are: sluice-cluster/bin/<version> in the user's cache directory.
func Dir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache for the programs of Kubernetes: %w", err)
	}
	return filepath.Join(cache, "sluice-cluster", "bin", Version), nil
}

// Build returns the directory of the programs after those of these names are there. What is missing, or was built from another
// state of its module, is built, which is said on stderr and takes minutes. Other processes that want the same wait.
func Build(ctx context.Context, names ...string) (string, error) {
	dir, err := Dir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range names {
		if err := ensure(ctx, dir, name); err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
	}
	return dir, nil
}

func ensure(ctx context.Context, dir, name string) error {
	if ok, _, err := current(dir, name); ok || err != nil {
		return err
	}
	lock, err := file.AcquireLock(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	ok, digest, err := current(dir, name)
	if ok || err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "building %s, once, into %s\n", name, dir)
	start := time.Now()
	made := filepath.Join(dir, "."+name+".new")
	if err := programs[name].compile(ctx, made); err != nil {
		return err
	}
	// The stamp is of the program below its name, or of none: not of the one before.
	if err := os.Remove(stamp(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(made, filepath.Join(dir, name)); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "built %s in %s\n", name, time.Since(start).Round(time.Second))
	return os.WriteFile(stamp(dir, name), []byte(digest), 0o644)
}

func stamp(dir, name string) string { return filepath.Join(dir, "."+name+".sum") }

// current reports that the program is there as its module is now, whose digest it returns.
func current(dir, name string) (ok bool, digest string, err error) {
	p, known := programs[name]
	if !known {
		return false, "", fmt.Errorf("%q is none of %s", name, strings.Join(All(), ", "))
	}
	if digest, err = p.digest(); err != nil {
		return false, "", err
	}
	_, missing := os.Stat(filepath.Join(dir, name))
	had, unknown := os.ReadFile(stamp(dir, name))
	return missing == nil && unknown == nil && string(had) == digest, digest, nil
}

// digest tells the states of a module apart, as far as p is built from it.
func (p program) digest() (string, error) {
	root, err := p.root()
	if err != nil {
		return "", err
	}
	files := []string{"go.mod", "go.sum"}
	if local, ok := strings.CutPrefix(p.pkg, "./"); ok {
		own, err := filepath.Glob(filepath.Join(root, local, "*.go"))
		if err != nil {
			return "", err
		}
		for _, name := range own {
			files = append(files, filepath.Join(local, filepath.Base(name)))
		}
	}
	sum := sha256.New()
	fmt.Fprintln(sum, p, flags())
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, name, len(data))
		_, _ = sum.Write(data)
	}
	return fmt.Sprintf("%x\n", sum.Sum(nil)), nil
}

// flags are those of the go command. A cluster's parts compare their versions, which come from the linker.
func flags() []string {
	link := "-s -w"
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		link += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=34 -X %[1]s.gitTreeState=clean", pkg, Version)
	}
	// Two compilers at a time: those of Kubernetes' API take a gigabyte each.
	return []string{"-p=2", "-trimpath", "-buildvcs=false", "-ldflags", link}
}

func (p program) compile(ctx context.Context, out string) error {
	root, err := p.root()
	if err != nil {
		return err
	}
	args := []string{"build"}
	if p.tests {
		args = []string{"test", "-c"}
	}
	args = slices.Concat(args, flags(), []string{"-o", out, p.pkg})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", args[0], err, bytes.TrimSpace(said))
	}
	return nil
}

// Source returns the folder of the sources of a module that a program is built from.
func Source(ctx context.Context, name, path string) (string, error) {
	root, err := programs[name].root()
	if err != nil {
		return "", err
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", path)
	cmd.Dir, cmd.Stderr = root, &stderr
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w: %s", path, err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// root is the folder of the module in the working tree.
func (p program) root() (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w: %s", err, stderr.Bytes())
	}
	return filepath.Join(strings.TrimSpace(string(out)), "pkg/test/kubebin/modules", p.module), nil
}

const module = "github.com/sluice-cni/sluice"
