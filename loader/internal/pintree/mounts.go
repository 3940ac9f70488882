// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Place is a mount namespace and where it has the pins of this network namespace, or would have them.
type Place struct {
	Path   string `json:"path"`          // as this process reaches it
	PID    int    `json:"pid,omitempty"` // of a process in that mount namespace; 0: where Sluice looks
	Pinned bool   `json:"pinned"`        // a datapath of this network namespace is there
}

// Places returns where Sluice looks for the pins, and each other mount namespace that can be seen and has some: those of a runtime in a
// container, of a DaemonSet, or of "ip netns exec". It reads the whole of /proc, and is for the operator's tool.
func (t *Tree) Places() ([]Place, error) {
	_, loaded := t.Paths.Committed()
	out := []Place{{Path: t.Paths.BPFFS.Path(), Pinned: loaded}}
	seen := map[uint64]bool{deviceOf(t.Paths.BPFFS.Path()): true} // one bpffs may be mounted in many namespaces
	processes, err := Names("/proc")
	if err != nil {
		return nil, err
	}
	for _, name := range processes {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b := BPFFS{root: filepath.Join("/proc", name, "root"), Dir: t.Config.BPFFS}
		device := deviceOf(b.Path())
		if device == 0 || seen[device] {
			continue
		}
		seen[device] = true
		p := NewPaths(t.RunDir, b, filepath.Base(t.Paths.Dir))
		if _, loaded := p.Committed(); loaded {
			out = append(out, Place{Path: b.Path(), PID: pid, Pinned: true})
		}
	}
	return out, nil
}

// deviceOf returns the number of the bpffs at path, 0 where there is none.
func deviceOf(path string) uint64 {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(path, &fs) != nil || fs.Type != unix.BPF_FS_MAGIC || unix.Stat(path, &st) != nil {
		return 0
	}
	return uint64(st.Dev) //nolint:unconvert // 32 bits on some architectures
}
