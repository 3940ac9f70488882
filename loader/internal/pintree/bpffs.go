// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// BPFFS is a BPF file system, or the directory where it is to be.
type BPFFS struct {
	root string // leads to the mounts it belongs to ("/proc/1/root"); empty: the process's own
	Dir  string
}

// Path is where the process sees it.
func (b BPFFS) Path() string { return b.root + b.Dir }

// findBPFFS finds the configured one. That is not the process's own where the default is not mounted for this process and its
// mounts are its own: "ip netns exec" covers /sys, and with what is mounted there the pins would go as soon as the plugin ends. A path
// that the operator has configured is meant as it stands.
func findBPFFS(configured string) BPFFS {
	b := BPFFS{Dir: configured}
	if configured != nodeconf.DefaultBPFFS {
		return b
	}
	if ok, err := b.mounted(); ok || err != nil {
		return b
	}
	b.root = lastingRoot()
	return b
}

// lastingRoot returns a path to the mounts that outlive those of this process: of the machine's first process, or, where that may
// not be looked into, of the farthest ancestor that may. Empty when they are the same.
func lastingRoot() string {
	var own, other unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/mnt", &own) != nil {
		return ""
	}
	for _, pid := range ancestors() {
		dir := filepath.Join("/proc", pid)
		if unix.Stat(filepath.Join(dir, "ns/mnt"), &other) != nil {
			continue
		}
		if own.Ino == other.Ino && own.Dev == other.Dev {
			return ""
		}
		return filepath.Join(dir, "root")
	}
	return ""
}

// InPrivateMountNS is loader.InPrivateMountNS.
func InPrivateMountNS() bool { return lastingRoot() != "" }

// ancestors returns the processes above this one, the first one first.
func ancestors() []string {
	up := []string{}
	for pid := strconv.Itoa(os.Getppid()); pid != "0" && pid != "1"; {
		up = append(up, pid)
		raw, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil {
			break
		}
		// "pid (name) state ppid ...", where a name may hold anything (proc_pid_stat(5)).
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		if len(fields) < 2 {
			break
		}
		pid = fields[1]
	}
	slices.Reverse(up)
	return append([]string{"1"}, up...)
}

// mounted reports whether it is there. The error is a definite no.
func (b BPFFS) mounted() (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(b.Path(), &fs); err != nil {
		return false, loadapi.No("%s: %v: the kernel has no BPF file system, or the directory must be made", b.Path(), err)
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}

// Ensure mounts it where the directory exists and holds another file system, as the other eBPF suites do: many distributions
// leave that to the first user. The lock keeps two processes from mounting over each other, which would hide the pins of the first.
func (b BPFFS) Ensure(runDir string) error {
	if ok, err := b.mounted(); ok || err != nil {
		return err
	}
	lock, err := file.AcquireLock(context.Background(), filepath.Join(runDir, "bpffs.lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if ok, err := b.mounted(); ok || err != nil {
		return err
	}
	if b.root == "" {
		err = b.mount()
	} else {
		err = asOwner(b.root, b.mount)
	}
	if err != nil {
		return loadapi.No("%s is not a bpffs and mounting one there fails: %v: mount it with \"mount -t bpf bpffs %s\"", b.Path(), err, b.Dir)
	}
	return nil
}

func (b BPFFS) mount() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME
	return unix.Mount("bpffs", b.Dir, "bpf", flags, "mode=0700")
}

// asOwner runs f in the mount namespace that a root belongs to, on a thread that ends with it.
func asOwner(root string, f func() error) error {
	ns, err := os.Open(filepath.Join(filepath.Dir(root), "ns/mnt"))
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()             // and never unlocked
		err := unix.Unshare(unix.CLONE_FS) // who shares its root directory with other threads may not change mounts
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS) //nolint:forbidigo // of mounts; pkg/netns is for networks
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// AskLasting asks whether the pins outlive the mounts of this process.
func (b BPFFS) AskLasting() error {
	root := lastingRoot()
	if root == "" || b.root != "" {
		return nil
	}
	var own, lasting unix.Stat_t
	ok, err := b.mounted()
	if err == nil && ok && unix.Stat(b.Dir, &own) == nil && unix.Stat(root+b.Dir, &lasting) == nil && own.Dev == lasting.Dev {
		return nil
	}
	return loadapi.No("the process runs in a mount namespace of its own")
}

// Look is Ensure without mounting. A directory that waits for its mount is no reason to say no.
func (b BPFFS) Look() error {
	ok, err := b.mounted()
	if err == nil && !ok {
		err = fmt.Errorf("%s is not mounted yet: the first ADD does that", b.Dir)
	}
	return err
}
