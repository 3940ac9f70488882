// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/install"
)

// sources of what is in packages and archives besides programs.
const (
	packageFiles = "deploy/packages"
	unitFiles    = "deploy/systemd"
	udevRules    = "deploy/udev/80-sluice.rules"
)

// pages are the documents that go with the programs.
var pages = []string{"README.md", "CHANGELOG.md", "SECURITY.md"}

// shells are the shells that the tool completes its command line for.
var shells = []string{"bash", "zsh", "fish"}

// completed are the programs with completion and man pages.
var completed = []string{"sluice", "sluice-agent"}

// completion returns what "completion" of a program prints for a shell. The program runs on this machine, so it is built for it.
func (r *release) completion(program, shell string) ([]byte, error) {
	file := filepath.Join(r.work, "completion", program)
	if _, err := os.Stat(file); err != nil {
		if _, err := goCommand(runtime.GOARCH, "build", "-trimpath", "-buildvcs=false", "-o", file, "./cmd/"+program); err != nil {
			return nil, err
		}
	}
	return output(exec.Command(file, "completion", shell))
}

// manual returns the man pages with version and date, by their file names. Tests of the programs write them (pkg/test/mantest).
func (r *release) manual() (map[string][]byte, error) {
	dir := filepath.Join(r.work, "man")
	if err := writeManual(dir); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(dir + "/*.8")
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("TestManPages in cmd wrote no man page")
	}
	out := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		out[filepath.Base(file)] = r.fill(text, map[string]string{"DATE": r.time.Format("2006-01-02"), "VERSION": r.version})
	}
	return out, nil
}

// writeManual makes a folder of man pages, unless it is there: all architectures have the same pages.
func writeManual(dir string) error {
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	args := []string{"test", "-count=1", "-vet=off", "-tags", buildTags, "-run", "^TestManPages$"}
	for _, name := range completed {
		args = append(args, "./cmd/"+name)
	}
	_, err := goCommand(runtime.GOARCH, append(args, "-args", "-man", dir)...)
	return err
}

// fill puts values into a file where it has their names between @ signs.
func (r *release) fill(text []byte, values map[string]string) []byte {
	pairs := make([]string, 0, 2*len(values))
	for name, value := range values {
		pairs = append(pairs, "@"+name+"@", value)
	}
	return []byte(strings.NewReplacer(pairs...).Replace(string(text)))
}

// filled reads a file of packageFiles and fills it.
func (r *release) filled(name string, values map[string]string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(packageFiles, name))
	if err != nil {
		return nil, err
	}
	return r.fill(text, values), nil
}

// units returns the systemd units whose program exists, and of these the services that stay.
func units(programs []string) (all, services []string, err error) {
	files, err := filepath.Glob(unitFiles + "/*.*")
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		name := filepath.Base(file)
		if name == "sluice-agent.service" && !slices.Contains(programs, "sluice-agent") {
			continue
		}
		all = append(all, name)
		if path.Ext(name) == ".service" && !strings.Contains(name, "@") {
			services = append(services, name)
		}
	}
	if len(services) == 0 {
		return nil, nil, fmt.Errorf("no service in %s", unitFiles)
	}
	return all, services, nil
}

// payload is what a package installs. packager is dpkg or rpm.
func (r *release) payload(arch, packager string) (tree, error) {
	t, err := r.licences("usr/share/doc/sluice/licences")
	if err != nil {
		return nil, err
	}
	names, err := programs()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := t.copy("usr/lib/sluice/"+name, r.program(arch, name), 0o755); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"sluice", "sluice-agent"} {
		if slices.Contains(names, name) {
			t.add("usr/bin/"+name, fs.ModeSymlink|0o777, []byte("../lib/sluice/"+name))
		}
	}
	t.add("opt/cni/bin", fs.ModeDir|0o755, nil)
	if err := r.addPackageFiles(t, packager); err != nil {
		return nil, err
	}
	if err := r.addDocuments(t); err != nil {
		return nil, err
	}
	return t, r.addCompletions(t, packager)
}

// addPackageFiles adds what installs the plugins, and the units.
func (r *release) addPackageFiles(t tree, packager string) error {
	script, err := r.filled("plugin-files.sh", map[string]string{"PACKAGER": packager})
	if err != nil {
		return err
	}
	t.add("usr/lib/sluice/plugin-files", 0o755, script)
	programs := ""
	for _, p := range install.Programs() {
		programs += p.Name + "\n"
	}
	t.add("usr/share/sluice/programs", 0o644, []byte(programs))
	t.add("usr/share/sluice/plugins", 0o644, []byte(strings.Join(install.Plugins(), "\n")+"\n"))
	if err := t.copy(settings, filepath.Join(packageFiles, "default"), 0o644); err != nil {
		return err
	}
	compiled, err := os.ReadDir(filepath.Join(r.work, r.arches[0]))
	if err != nil {
		return err
	}
	var names []string
	for _, e := range compiled {
		names = append(names, e.Name())
	}
	all, _, err := units(names)
	if err != nil {
		return err
	}
	for _, name := range all {
		if err := t.copy("usr/lib/systemd/system/"+name, filepath.Join(unitFiles, name), 0o644); err != nil {
			return err
		}
	}
	return t.copy("usr/lib/udev/rules.d/"+filepath.Base(udevRules), udevRules, 0o644)
}

func (r *release) addDocuments(t tree) error {
	for _, page := range pages {
		if err := t.copy("usr/share/doc/sluice/"+page, page, 0o644); err != nil {
			return err
		}
	}
	if err := t.copy("usr/share/doc/sluice/copyright", packageFiles+"/copyright", 0o644); err != nil {
		return err
	}
	manual, err := r.manual()
	if err != nil {
		return err
	}
	for name, text := range manual {
		packed, err := packed(text)
		if err != nil {
			return err
		}
		t.add("usr/share/man/man"+strings.TrimPrefix(path.Ext(name), ".")+"/"+name+".gz", 0o644, packed)
	}
	return nil
}

func (r *release) addCompletions(t tree, packager string) error {
	zsh := "usr/share/zsh/vendor-completions/_"
	if packager == "rpm" {
		zsh = "usr/share/zsh/site-functions/_"
	}
	for _, program := range completed {
		for shell, file := range map[string]string{
			"bash": "usr/share/bash-completion/completions/" + program, "zsh": zsh + program, "fish": "usr/share/fish/vendor_completions.d/" + program + ".fish",
		} {
			text, err := r.completion(program, shell)
			if err != nil {
				return err
			}
			t.add(file, 0o644, text)
		}
	}
	return nil
}

// packed compresses a man page as gzip -9n does.
func packed(text []byte) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	err = z.Close()
	return buf.Bytes(), err
}
