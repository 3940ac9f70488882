// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Modules writes an archive with the modules of a release, taken from a tree of
// unpacked packages, and the lists that modprobe(8) reads: modules.dep,
// modules.alias, modules.softdep and modules.builtin.
func Modules(ctx context.Context, archive, tree, release string) (err error) {
	dir, err := moduleDir(tree, release)
	if err != nil {
		return err
	}
	mods, err := findModules(ctx, dir)
	if err != nil {
		return err
	}
	slices.SortFunc(mods, func(a, b module) int { return cmp.Compare(a.path, b.path) })
	a, err := Create(archive)
	if err != nil {
		return err
	}
	root := "usr/lib/modules/" + release + "/"
	for _, m := range mods {
		a.File(m.file, root+m.path)
	}
	for name, content := range lists(mods) {
		a.Text(root+name, content, 0o644)
	}
	for _, name := range []string{"modules.builtin", "modules.builtin.modinfo", "modules.order"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			a.File(filepath.Join(dir, name), root+name)
		}
	}
	return a.Close()
}

// moduleDir finds the directory, which moved below /usr in Debian 13.
func moduleDir(tree, release string) (string, error) {
	for _, lib := range []string{"usr/lib", "lib"} {
		dir := filepath.Join(tree, lib, "modules", release)
		if _, err := os.Stat(filepath.Join(dir, "kernel")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the packages have no modules of %s", release)
}

// lists renders what depmod(8) would.
func lists(mods []module) map[string]string {
	byName := map[string]module{}
	for _, m := range mods {
		byName[m.name] = m
	}
	var dep, alias, soft strings.Builder
	for _, m := range mods {
		var paths []string
		for _, d := range needs(byName, m) {
			paths = append(paths, " "+byName[d].path)
		}
		fmt.Fprintf(&dep, "%s:%s\n", m.path, strings.Join(paths, ""))
		for _, a := range m.aliases {
			fmt.Fprintf(&alias, "alias %s %s\n", a, m.name)
		}
		if len(m.pre) > 0 {
			fmt.Fprintf(&soft, "softdep %s pre: %s\n", m.name, strings.Join(m.pre, " "))
		}
	}
	return map[string]string{"modules.dep": dep.String(), "modules.alias": alias.String(), "modules.softdep": soft.String()}
}

// needs returns all that a module depends on, directly or not: the one to load
// first comes last, as in modules.dep.
func needs(byName map[string]module, m module) []string {
	var order []string
	var visit func(m module)
	visit = func(m module) {
		for _, d := range m.depends {
			next, ok := byName[d]
			if !ok || slices.Contains(order, d) {
				continue
			}
			visit(next)
			if !slices.Contains(order, d) {
				order = append(order, d)
			}
		}
	}
	visit(m)
	slices.Reverse(order)
	return order
}
