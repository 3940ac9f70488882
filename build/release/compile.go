// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/sluice-cni/sluice"

// buildTags leave out the pages of gRPC's tracer. Their templates call methods by name, so that the linker keeps each method of each type.
const buildTags = "grpcnotrace"

// programs returns the names of all programs: the folders of cmd with a main.go.
func programs() ([]string, error) {
	mains, err := filepath.Glob("cmd/*/main.go")
	if err != nil {
		return nil, err
	}
	if len(mains) == 0 {
		return nil, errors.New("there is no cmd/*/main.go: run it at the root of the repository")
	}
	names := make([]string, 0, len(mains))
	for _, m := range mains {
		names = append(names, filepath.Base(filepath.Dir(m)))
	}
	return names, nil
}

// program returns the path of a compiled program.
func (r *release) program(arch, name string) string { return filepath.Join(r.work, arch, name) }

// compile builds all programs for each architecture.
func (r *release) compile() error {
	names, err := programs()
	if err != nil {
		return err
	}
	for _, arch := range r.arches {
		args := []string{
			"build", "-trimpath", "-buildvcs=false", "-tags", buildTags, "-ldflags", "-s -w -X " + module + "/pkg/version.build=" + r.version,
			"-o", r.program(arch, "") + "/",
		}
		for _, name := range names {
			args = append(args, "./cmd/"+name)
		}
		if _, err := goCommand(arch, args...); err != nil {
			return err
		}
	}
	return nil
}

// goCommand runs the go command for an architecture. What the environment could change about a program is set here. Modules come
// from the module cache only: "go mod download" fills it.
func goCommand(arch string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(),
		"GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOEXPERIMENT=",
		"GOFIPS140=off", "GOWORK=off", "GOPROXY=off")
	return output(cmd)
}

// output runs a command and returns what it prints. Its error has what the command says.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := append(slices.Clone(out), stderr.Bytes()...)
		return out, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(said))
	}
	return out, nil
}

// licences returns the licences of Sluice, of Go, and of every module that a program contains, as files below dir. Most licences
// ask that their text goes with the program.
func (r *release) licences(dir string) (tree, error) {
	t := tree{}
	for name, file := range map[string]string{
		"LICENSE": "LICENSE", "bpf/LICENSE.GPL-2.0": "bpf/LICENSE.GPL-2.0", "bpf/LICENSE.BSD-2-Clause": "bpf/LICENSE.BSD-2-Clause",
	} {
		if err := t.copy(filepath.Join(dir, "sluice", name), file, 0o644); err != nil {
			return nil, err
		}
	}
	root, err := goCommand(r.arches[0], "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	if err := t.copy(filepath.Join(dir, "go", "LICENSE"), filepath.Join(strings.TrimSpace(string(root)), "LICENSE"), 0o644); err != nil {
		return nil, err
	}
	for _, arch := range r.arches {
		if err := addModules(t, dir, arch); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func addModules(t tree, dir, arch string) error {
	const format = `{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}`
	out, err := goCommand(arch, "list", "-deps", "-tags", buildTags, "-f", format, "./cmd/...")
	if err != nil {
		return err
	}
	lines := strings.Fields(strings.ReplaceAll(string(out), " ", "\x00"))
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		name, folder, _ := strings.Cut(line, "\x00")
		found, err := addLicences(t, filepath.Join(dir, name), folder)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%s: there is no licence in %s", name, folder)
		}
	}
	return nil
}

// addLicences copies the licences of a module.
func addLicences(t tree, dir, folder string) (found bool, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		upper := strings.ToUpper(e.Name())
		isLicence := slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE"}, func(p string) bool { return strings.HasPrefix(upper, p) })
		if !isLicence || e.Type()&fs.ModeType != 0 || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		found = true
		if err := t.copy(filepath.Join(dir, e.Name()), filepath.Join(folder, e.Name()), 0o644); err != nil {
			return false, err
		}
	}
	return found, nil
}
