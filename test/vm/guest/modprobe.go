// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// modprobeMain loads the modules that its arguments name, by name or alias, as
// the kernel asks with "modprobe -q -- NAME" (kernel/module/kmod.c).
func modprobeMain(args []string) error {
	quiet := false
	var errs []error
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			quiet = quiet || a == "-q"
			continue
		}
		errs = append(errs, modprobe(a))
	}
	err := errors.Join(errs...)
	if err != nil && quiet {
		os.Exit(1)
	}
	return err
}

// moduleIndex is what the lists of a release say.
type moduleIndex struct {
	dir     string
	files   map[string][]string // name: its file, then what to load before, last first
	soft    map[string][]string
	builtin map[string]bool
	aliases [][2]string
}

func modprobe(wanted string) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	x, err := readIndex("/lib/modules/" + unix.ByteSliceToString(uts.Release[:]) + "/")
	if err != nil {
		return err
	}
	names := x.resolve(normal(wanted))
	if len(names) == 0 {
		return fmt.Errorf("modprobe: no module %s", wanted)
	}
	var errs []error
	for _, n := range names {
		errs = append(errs, x.load(n, nil))
	}
	return errors.Join(errs...)
}

// normal is a name as the kernel spells it: aliases are compared in this form.
func normal(s string) string { return strings.ReplaceAll(s, "-", "_") }

func readIndex(dir string) (*moduleIndex, error) {
	x := &moduleIndex{
		dir:   dir,
		files: map[string][]string{}, soft: map[string][]string{}, builtin: map[string]bool{},
	}
	err := errors.Join(
		x.lines("modules.dep", func(f []string) {
			f[0] = strings.TrimSuffix(f[0], ":")
			x.files[nameOf(f[0])] = f
		}),
		x.lines("modules.alias", func(f []string) { x.aliases = append(x.aliases, [2]string{normal(f[1]), f[2]}) }),
		x.lines("modules.softdep", func(f []string) { x.soft[f[1]] = f[3:] }),
		x.lines("modules.builtin", func(f []string) { x.builtin[nameOf(f[0])] = true }))
	return x, err
}

func nameOf(file string) string { return normal(strings.TrimSuffix(filepath.Base(file), ".ko")) }

func (x *moduleIndex) lines(name string, f func(fields []string)) error {
	data, err := os.ReadFile(x.dir + name)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			f(fields)
		}
	}
	return nil
}

// resolve returns the modules that a name stands for.
func (x *moduleIndex) resolve(name string) []string {
	if x.files[name] != nil || x.builtin[name] {
		return []string{name}
	}
	var out []string
	for _, a := range x.aliases {
		if ok, err := path.Match(a[0], name); err == nil && ok && !slices.Contains(out, a[1]) {
			out = append(out, a[1])
		}
	}
	return out
}

// load loads a module after what it needs. Soft dependencies may fail. trail
// are the modules being loaded already.
func (x *moduleIndex) load(name string, trail []string) error {
	files := x.files[name]
	if x.builtin[name] || slices.Contains(trail, name) {
		return nil
	}
	if files == nil {
		return fmt.Errorf("modprobe: no module %s", name)
	}
	for _, s := range x.soft[name] {
		_ = x.load(s, append(trail, name))
	}
	for _, f := range slices.Backward(files) {
		if err := insert(x.dir + f); err != nil {
			return err
		}
	}
	return nil
}

func insert(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("insert %s: %w", filepath.Base(file), err)
	}
	return nil
}
