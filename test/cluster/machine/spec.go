// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Machine is known by its folder.
type Machine struct {
	// Name is its host name.
	Name string
	// Dir is its folder on the real machine: logs, the control socket, and what it is told.
	Dir string
	// Group is its cgroup below the root of each hierarchy.
	Group string
	// Share maps paths of the real machine to where the machine sees them, read only.
	Share map[string]string
}

// Shared is where the machine sees its own folder.
const Shared = "/cluster"

const (
	specFile    = "machine.json"
	processFile = "process.json"
	socketFile  = "control.sock"
)

// Load returns the machine of a folder.
func Load(dir string) (*Machine, error) {
	m := &Machine{}
	if err := readJSON(filepath.Join(dir, specFile), m); err != nil {
		return nil, err
	}
	m.Dir = dir
	return m, nil
}

// identity tells a process from later ones with its pid.
type identity struct {
	PID   int
	Start string // ticks between the boot and its start
	Boot  string
}

// identify returns what tells a process from later ones with its pid, or fs.ErrNotExist. One that has ended and that its parent
// has not waited for yet is none any more.
func identify(pid int) (identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return identity{}, err
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, unix.ESRCH) { // it ended between open and read
		err = fs.ErrNotExist
	}
	if err != nil {
		return identity{}, err
	}
	// The name of the program stands in brackets, and may have some itself.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	const start = 22 - 3 // proc(5) counts from 1, and two fields are cut off
	if len(fields) <= start {
		return identity{}, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	if state := fields[0]; state == "Z" || state == "X" {
		return identity{}, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
	}
	return identity{PID: pid, Start: fields[start], Boot: strings.TrimSpace(string(boot))}, nil
}

// process returns the machine's first process, or fs.ErrNotExist when that has ended.
func (m *Machine) process() (identity, error) {
	var want identity
	if err := readJSON(filepath.Join(m.Dir, processFile), &want); err != nil {
		return want, err
	}
	got, err := identify(want.PID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return want, err
	}
	if err != nil || got != want {
		return want, fmt.Errorf("machine %s has ended: %w", m.Name, fs.ErrNotExist)
	}
	return want, nil
}

// PID is that of the machine's first process.
func (m *Machine) PID() (int, error) {
	p, err := m.process()
	return p.PID, err
}

// Running reports that the machine's first process lives.
func (m *Machine) Running() bool {
	_, err := m.process()
	return err == nil
}

func readJSON(path string, to any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON leaves the whole file or none.
func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
