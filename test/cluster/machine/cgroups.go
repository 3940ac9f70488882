// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A hierarchy is one mounted tree of cgroups.
type hierarchy struct {
	at      string   // where the real machine mounts it
	v2      bool     // cgroup v2
	options []string // version 1: its controllers, or its name
}

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies lists what is mounted at and below /sys/fs/cgroup.
func hierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for line := range strings.Lines(string(data)) {
		mount, kind, _ := strings.Cut(strings.TrimSpace(line), " - ")
		at, is := strings.Fields(mount), strings.Fields(kind)
		if len(at) < 5 || len(is) < 3 || !strings.HasPrefix(at[4]+"/", cgroupRoot+"/") {
			continue
		}
		switch is[0] {
		case "cgroup2":
			found = append(found, hierarchy{at: at[4], v2: true})
		case "cgroup":
			found = append(found, hierarchy{at: at[4], options: controllers(is[2])})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no cgroups are mounted below " + cgroupRoot)
	}
	return found, nil
}

// controllers are those of the options which name a hierarchy of version 1.
func controllers(super string) []string {
	var options []string
	for o := range strings.SplitSeq(super, ",") {
		switch {
		case strings.HasPrefix(o, "name="):
			options = append(options, "none", o)
		case o != "rw" && o != "ro" && o != "xattr" && o != "seclabel" && !strings.HasPrefix(o, "release_agent="):
			options = append(options, o)
		}
	}
	return options
}

// only reports that cgroup v2 is all there is: its groups then have controllers, and no processes beside groups.
func only(all []hierarchy) bool { return len(all) == 1 && all[0].v2 }

// makeGroups makes the machine's cgroup in each hierarchy.
func (m *Machine) makeGroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := h.at
		for part := range strings.SplitSeq(m.Group, "/") {
			if only(all) {
				if err := delegate(dir); err != nil {
					return err
				}
			}
			above := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := inheritSets(above, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate lets the groups below dir have its controllers.
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(have)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return fmt.Errorf("controller %s below %s: %w", c, dir, err)
		}
	}
	return nil
}

// inheritSets copies the processors and memory nodes of the group above: a new group of version 1 has none, and takes no process.
func inheritSets(above, dir string) error {
	for _, set := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(above, set))
		if err != nil {
			continue // another controller, or version 2, where an empty set means all
		}
		if err := os.WriteFile(filepath.Join(dir, set), value, 0); err != nil {
			return err
		}
	}
	return nil
}

// groupDirs are the machine's cgroups as the real machine sees them.
func (m *Machine) groupDirs() ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, h := range all {
		dir := filepath.Join(h.at, m.Group)
		if only(all) {
			dir = filepath.Join(dir, leaf)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// leaf is the group of the machine's own processes where cgroup v2 is all there is.
const leaf = "machine"

// RemoveGroups removes a group and what is below it from every hierarchy. Its processes may have ended a moment ago.
func RemoveGroups(group string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		root := filepath.Join(h.at, group)
		for late := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if err = removeTree(root); err == nil || time.Now().After(late) {
				break
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveEmptyGroup removes a group from every hierarchy where it has no group and no process.
func RemoveEmptyGroup(group string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		err := os.Remove(filepath.Join(h.at, group))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	// Its files are the kernel's: only rmdir(2) removes a group.
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
