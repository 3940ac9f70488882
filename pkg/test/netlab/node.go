// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/cgroup"
)

const (
	// netnsDir is where pods have their paths, inside the node.
	netnsDir = "/run/netns"
	// KeepDir holds what was covered by the node's mounts and is still needed:
	// the host's /etc is KeepDir/etc, for one, if it had no /etc/sluice or no
	// /etc/cni. It is inside the node's own /run.
	KeepDir = "/run/.lab"
)

// stateDirs are directories the plugins write, each a tmpfs of the node's own.
var stateDirs = []string{"/var/lib/cni", "/etc/sluice", "/etc/cni"}

// Node is a machine in miniature. Its Do also enters the node's mounts.
type Node struct {
	*NS
}

// NewNode makes a node without any uplink. The caller must Close it.
func NewNode() (*Node, error) {
	n := &Node{NS: &NS{Name: "node"}}
	group, err := cgroup.Join()
	if err != nil && !errors.Is(err, cgroup.ErrNone) {
		return nil, fmt.Errorf("make node: %w", err)
	}
	err = onFreshThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare network and mount namespace (root needed): %w", err)
		}
		if n.net, err = openThreadNS("net"); err != nil {
			return err
		}
		if n.mnt, err = openThreadNS("mnt"); err != nil {
			return err
		}
		if err := setupMounts(group); err != nil {
			return err
		}
		return linkUp("lo")
	})
	if err != nil {
		return nil, fmt.Errorf("make node: %w", errors.Join(err, n.NS.Close()))
	}
	return n, nil
}

// setupMounts gives the calling thread's new mount namespace the file systems
// of a node. Everything mounted here is gone with the namespace. group is the
// process's own cgroup, empty where there is no cgroup v2.
func setupMounts(group string) error {
	// First of all: no mount made below may travel back to the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mountTmpfs("/run"); err != nil {
		return err
	}
	for _, d := range []string{netnsDir, KeepDir, "/run/lock"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := mountSys(group); err != nil {
		return err
	}
	if err := writableProcSys(); err != nil {
		return err
	}
	for _, d := range stateDirs {
		if err := ensureDir(d); err != nil {
			return err
		}
		if err := mountTmpfs(d); err != nil {
			return err
		}
	}
	return nil
}

func mountTmpfs(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// mountSys covers /sys with a sysfs that shows the devices of this namespace,
// then brings back the cgroup tree and adds an empty bpffs. The node sees its own
// part of cgroup v2 only: a program at its root meets no socket of the host.
func mountSys(group string) error {
	tree, err := unix.Open("/sys/fs/cgroup", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /sys/fs/cgroup: %w", err)
	}
	defer func() { _ = unix.Close(tree) }()
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	src := fmt.Sprintf("/proc/thread-self/fd/%d", tree)
	if err := unix.Mount(src, "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind cgroup tree: %w", err)
	}
	if group != "" {
		root, err := cgroup.Mount()
		if err != nil {
			return err
		}
		if err := unix.Mount(group, root, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind cgroup %s: %w", group, err)
		}
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700"); err != nil {
		return fmt.Errorf("mount bpffs (does the kernel have BPF?): %w", err)
	}
	return nil
}

// writableProcSys lifts a read-only /proc/sys, as container runtimes mount it.
// The net part of it always belongs to the reader's own namespace.
func writableProcSys() error {
	var st unix.Statfs_t
	if err := unix.Statfs("/proc/sys", &st); err != nil {
		return fmt.Errorf("statfs /proc/sys: %w", err)
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	if err := unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("remount /proc/sys writable: %w", err)
	}
	return nil
}

// ensureDir makes dir exist in this mount namespace without creating it on the
// host: a missing directory is made in a tmpfs laid over its nearest existing
// parent, whose entries stay visible through symbolic links.
func ensureDir(dir string) error {
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if err := ensureDir(parent); err != nil {
		return err
	}
	if err := shadow(parent); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o755)
}

// shadow mounts a writable tmpfs over dir and links its old entries into it.
// Doing it twice is harmless.
func shadow(dir string) error {
	keep := filepath.Join(KeepDir, dir)
	if _, err := os.Lstat(keep); err == nil {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dir, keep, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep %s: %w", dir, err)
	}
	if err := mountTmpfs(dir); err != nil {
		return err
	}
	for _, e := range entries {
		target := filepath.Join(keep, e.Name())
		if e.Type()&os.ModeSymlink != 0 {
			// Copied as it is: a relative link stays right only where it was.
			if target, err = os.Readlink(target); err != nil {
				return err
			}
		}
		if err := os.Symlink(target, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
