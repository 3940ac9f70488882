// SPDX-License-Identifier: Apache-2.0

// Package cgroup gives a test process a cgroup (v2) of its own, so that what a datapath attaches there sees the sockets of this
// process and of those it starts, and no others of the machine. It needs root.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// ErrNone says that cgroup v2 is mounted nowhere.
var ErrNone = errors.New("cgroup v2 is not mounted")

var own = sync.OnceValues(join)

// Join moves the process into a cgroup made for it, once, and returns its directory. A watcher outside of it removes it when the
// process has ended, however that comes.
func Join() (string, error) {
	g, err := own()
	return g.dir, err
}

type group struct {
	dir string
	end io.Closer // the watcher's pipe: were it forgotten, it would be closed with the garbage
}

func join() (g group, err error) {
	root, err := Mount()
	if err != nil {
		return g, err
	}
	if dir, ok := inherited(root); ok {
		return group{dir: dir}, nil
	}
	dir := filepath.Join(root, prefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return g, err
	}
	if g.end, err = watch(dir); err != nil {
		return g, errors.Join(err, os.Remove(dir))
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return g, fmt.Errorf("move into cgroup %s: %w", dir, err)
	}
	g.dir = dir
	return g, nil
}

const prefix = "sluice-test-"

// inherited returns the cgroup of a process that a test has started: it stays in that of its parent.
func inherited(root string) (string, bool) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(raw)) {
		path, v2 := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if v2 && strings.HasPrefix(filepath.Base(path), prefix) {
			return filepath.Join(root, path), true
		}
	}
	return "", false
}

// watch starts a process that stays outside and removes dir when this one's end of the pipe closes.
func watch(dir string) (io.Closer, error) {
	// The last processes of a test may end after it.
	const script = `read x; for i in 1 2 3 4 5 6 7 8 9 10; do rmdir "$0" 2>/dev/null && exit; sleep 0.5; done`
	cmd := exec.Command("/bin/sh", "-c", script, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // ctrl-C is for the whole group of processes
	end, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return end, cmd.Start()
}

// Mount returns where cgroup v2 is mounted for the calling thread. ErrNone: nowhere.
func Mount() (string, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		mount, fs, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(mount); strings.HasPrefix(fs, "cgroup2 ") && len(fields) > 4 {
			return fields[4], nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	return "", ErrNone
}
