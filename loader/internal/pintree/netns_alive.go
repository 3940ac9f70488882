// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netns"
)

// NetnsInode is a symbolic link to nowhere, whose target is the inode of the tree's network namespace.
func (p Paths) NetnsInode() string { return filepath.Join(p.Dir, "netns_inode") }

func (p Paths) makeNetnsInode() error {
	inode, err := namespaceInode()
	if err != nil {
		return err
	}
	if err := os.Symlink(strconv.FormatUint(inode, 10), p.NetnsInode()); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// HasProcesses reports whether a process that can be seen is in the network namespace of the tree. The inode finds it, for that takes
// no more than a look at each process; the name decides, since an inode may be another namespace's by now.
func (p Paths) HasProcesses() bool {
	home, err := os.Readlink(p.NetnsInode())
	if err != nil {
		return false
	}
	processes, err := Names("/proc")
	if err != nil {
		return false
	}
	for _, pid := range processes {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		path := filepath.Join("/proc", pid, "ns/net")
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || strconv.FormatUint(st.Ino, 10) != home {
			continue
		}
		ns, err := netns.Open(path)
		if err != nil { // it has just ended
			continue
		}
		name := ""
		err = ns.Do(func() (err error) {
			name, err = namespaceName()
			return err
		})
		ns.Close()
		if err != nil || name == filepath.Base(p.Dir) {
			return true
		}
	}
	return false
}
