// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// disk is the folder that all that a machine writes is in, below its own one.
const disk = "memory"

// own are the folders of a machine that begin empty, whatever the real machine has there, and are no overlay: containerd makes overlays
// in its own, and kubelet shares mounts of its own with containers.
var own = []string{
	"/var/lib/containerd", "/var/lib/kubelet", "/var/lib/cni", "/var/log", "/etc/cni/net.d", "/opt/cni/bin", "/etc/sluice", "/etc/containerd",
}

// mountAll gives the machine its files: an overlay of the real machine's root, whose writes go to memory. That is the machine's disk.
// again says that it has one from before.
func (m *Machine) mountAll(again bool) error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	memory := filepath.Join(m.Dir, disk)
	if again {
		if err := unix.MoveMount(givenDisk, "", unix.AT_FDCWD, memory, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount the disk from before: %w", err)
		}
		// As a clone of a mount of the machine it is shared, and no root can be below one.
		if err := unix.Mount("", memory, "", unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Close(givenDisk); err != nil {
			return err
		}
	} else if err := mount("tmpfs", memory, "tmpfs", 0, "mode=0700"); err != nil {
		return err
	}
	root := filepath.Join(memory, "root")
	upper, work, data := filepath.Join(memory, "upper"), filepath.Join(memory, "work"), filepath.Join(memory, "data")
	for _, dir := range []string{upper, work, data} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return kernelFiles(root) },
		func() error { return mountGroups(root, cgroups) },
		func() error { return ownFolders(root, data) },
		func() error { return m.identity(root) },
		func() error { return m.share(root) },
		func() error { return change(root) },
		func() error { return leaveRoot(cgroups) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}

// kernelFiles are those that belong to the machine's namespaces, and its devices, which are the real machine's.
func kernelFiles(root string) error {
	for _, f := range []struct {
		at, kind string
		options  string
	}{
		{"/proc", "proc", ""}, {"/sys", "sysfs", ""}, {"/sys/fs/bpf", "bpf", ""}, {"/run", "tmpfs", "mode=0755"}, {"/tmp", "tmpfs", "mode=1777"},
	} {
		if err := mount(f.kind, root+f.at, f.kind, 0, f.options); err != nil {
			return err
		}
	}
	if err := mount("/dev", root+"/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	for _, dir := range []string{"/run/lock", "/run/netns"} {
		if err := os.Mkdir(root+dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// mountGroups mounts each hierarchy where the real machine has it. Its root is the machine's group.
func mountGroups(root string, all []hierarchy) error {
	if only(all) {
		return mount("cgroup2", root+all[0].at, "cgroup2", 0, "")
	}
	if err := mount("tmpfs", root+cgroupRoot, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for _, h := range all {
		kind := "cgroup"
		if h.v2 {
			kind = "cgroup2"
		}
		if err := mount(kind, root+h.at, kind, 0, strings.Join(h.options, ",")); err != nil {
			return err
		}
	}
	links, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return err
	}
	for _, e := range links { // cpu and cpuacct may lead to cpu,cpuacct
		if e.Type() != os.ModeSymlink {
			continue
		}
		to, err := os.Readlink(filepath.Join(cgroupRoot, e.Name()))
		if err != nil {
			return err
		}
		if err := os.Symlink(to, filepath.Join(root, cgroupRoot, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func ownFolders(root, data string) error {
	for _, dir := range own {
		from := filepath.Join(data, strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-"))
		if err := os.MkdirAll(from, 0o755); err != nil {
			return err
		}
		if err := mount(from, root+dir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	// The real machine's may lead to a file below /run.
	resolv := root + "/etc/resolv.conf"
	if err := os.Remove(resolv); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(resolv, nil, 0o644)
}

// identity gives the machine an id that stays, and an id of this boot.
func (m *Machine) identity(root string) error {
	sum := sha256.Sum256([]byte(m.Dir))
	if err := os.WriteFile(root+"/etc/machine-id", fmt.Appendf(nil, "%x\n", sum[:16]), 0o444); err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	file := root + "/run/boot_id"
	if err := os.WriteFile(file, boot, 0o444); err != nil {
		return err
	}
	if err := unix.Mount(file, root+"/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("id of the boot: %w", err)
	}
	return nil
}

// share shows the machine its own folder, and what else it is given. Its disk is there too, so that Reboot finds it.
func (m *Machine) share(root string) error {
	if err := mount(m.Dir, root+Shared, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := mount(filepath.Join(m.Dir, disk), filepath.Join(root+Shared, disk), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	for from, at := range m.Share {
		if err := mount(from, root+at, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if err := unix.Mount("", root+at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

// change makes root the root, and lets go of the one before.
func change(root string) error {
	old := filepath.Join(root, "tmp", "old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return fmt.Errorf("pivot to %s: %w", root, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/tmp/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	if err := os.Remove("/tmp/old"); err != nil {
		return err
	}
	// Containers get kubelet's mounts by propagation.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// leaveRoot moves the machine's processes into a group of their own, where the root must have none for its groups to have controllers.
func leaveRoot(all []hierarchy) error {
	if !only(all) {
		return nil
	}
	dir := filepath.Join(all[0].at, leaf)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}
