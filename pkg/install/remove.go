// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Remove removes what Install has put into dir: the programs, and each plugin whose file still starts one of them, or is a copy of it. Files of
// other suites stay, also those with a plugin's name. It returns the names that are gone. A missing directory is success.
// Plugins go before the programs that they start.
func Remove(ctx context.Context, dir string, o Options) (removed []string, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	runtimeDir := o.RuntimeDir
	if runtimeDir == "" {
		if runtimeDir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
	}
	unlock, err := prepare(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var names []string
	for _, p := range Programs() {
		for _, plugin := range p.Plugins {
			if startsOrIs(filepath.Join(dir, plugin), filepath.Join(runtimeDir, p.Name), filepath.Join(dir, p.Name)) {
				names = append(names, plugin)
			}
		}
	}
	for _, p := range slices.Backward(Programs()) {
		names = append(names, p.Name)
	}
	for _, name := range append(names, lockName) {
		err := os.Remove(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return removed, err
		}
		if name != lockName {
			removed = append(removed, name)
		}
	}
	return removed, nil
}

// startsOrIs says that the plugin's file starts the program, or has its content where a starter cannot be.
func startsOrIs(plugin, program, file string) bool {
	info, err := os.Lstat(plugin)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	if Interpreter(plugin, info) == program {
		return true
	}
	return content{file: file}.is(plugin, info.Size())
}
