// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/mountinfo"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// ErrNoCgroup says that the kernel has no cgroup v2, or that it is not mounted and cannot be.
var ErrNoCgroup = errors.New("cgroup v2 is not mounted")

// CgroupRoot returns the directory whose sockets are handled: the configured one, else where cgroup v2 is mounted, its whole
// tree if there is a mount of that. Where it is mounted nowhere, as behind "ip netns exec", the tree is used too.
// ErrNoCgroup when the kernel has none, and an empty path when it is turned off.
func (t *Tree) CgroupRoot() (string, error) {
	switch root := t.Config.CgroupRoot; root {
	case nodeconf.CgroupOff:
		return "", nil
	case "", nodeconf.CgroupAuto:
		root, err := findCgroup2("/proc/thread-self/mountinfo")
		if errors.Is(err, ErrNoCgroup) {
			return t.cgroupTree()
		}
		return root, err
	default:
		return root, nil
	}
}

// cgroupTree returns a path, good until Close, to the root of cgroup v2 in a mount that is nowhere in the file system.
func (t *Tree) cgroupTree() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cgroup == nil {
		root, err := mountNowhere("cgroup2")
		if err != nil {
			return "", fmt.Errorf("%w, and cannot be: %w", ErrNoCgroup, err)
		}
		t.cgroup = root
	}
	return fmt.Sprintf("/proc/self/fd/%d", t.cgroup.Fd()), nil
}

// mountNowhere returns the root of a file system of that kind in a mount without a place.
func mountNowhere(kind string) (*os.File, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, err
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(root), kind), nil
}

// CgroupName is what to call a result of CgroupRoot.
func (t *Tree) CgroupName(root string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cgroup != nil {
		return "the root, not mounted"
	}
	return root
}

// findCgroup2 reads a table of proc_pid_mountinfo(5).
func findCgroup2(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	defer f.Close()
	found := ""
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		mount, fs, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if !ok || !strings.HasPrefix(fs, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		dir := mountinfo.Unescape(fields[4])
		if !isCgroup2(dir) { // something else is mounted over it
			continue
		}
		if fields[3] == "/" {
			return dir, nil
		}
		if found == "" {
			found = dir
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	if found == "" {
		return "", ErrNoCgroup
	}
	return found, nil
}

func isCgroup2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}
