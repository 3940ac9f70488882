// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// requiredTools are what the tests run, and a person with a shell needs first.
// The packages are in the Makefile.
var requiredTools = []string{"sh", "bash", "ip", "tc", "bridge", "ss", "nft", "iptables", "ip6tables", "iptables-save", "ip6tables-save", "iptables-restore", "ip6tables-restore", "ping"}

// otherTools come along when the machine has them.
var otherTools = strings.Fields(`iptables-nft iptables-nft-save iptables-nft-restore ip6tables-nft ip6tables-nft-save ip6tables-nft-restore
	iptables-legacy iptables-legacy-save iptables-legacy-restore ip6tables-legacy ip6tables-legacy-save ip6tables-legacy-restore
	xtables-nft-multi xtables-legacy-multi ebtables arptables ipset conntrack bpftool ethtool sysctl nsenter unshare setpriv tcpdump dnsmasq kea-dhcp4
	mount umount dmesg ps kill pgrep find grep sed awk less diff strace lsmod
	cat chmod chown cp cut date dd df echo env false head hostname id install kill ln ls mkdir mkfifo mknod mktemp mv nl od printf pwd readlink
	rm rmdir seq sleep sort stat stty sync tail tee test timeout touch tr true uname uniq wc`)

// links are the directories that Debian has merged below /usr.
var links = []string{"bin", "sbin", "lib", "lib64"}

// Base writes an archive with this machine's tools and all of the libraries
// that they load, and what else a root file system needs.
func Base(ctx context.Context, archive string) error {
	a, err := Create(archive)
	if err != nil {
		return err
	}
	b := &base{ctx: ctx, archive: a, done: map[string]bool{}}
	for _, l := range links {
		a.Dir("usr/" + l)
		a.Symlink("usr/"+l, l)
	}
	for _, d := range []string{"dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "opt", "var/lib", "var/log"} {
		a.Dir(d)
	}
	a.Symlink("/run", "var/run")
	err = errors.Join(b.tools(), b.plugins(), b.config())
	return errors.Join(err, a.Close())
}

type base struct {
	ctx     context.Context
	archive *Archive
	done    map[string]bool
}

func (b *base) tools() error {
	var missing []string
	for _, name := range slices.Concat(requiredTools, otherTools) {
		path, err := exec.LookPath(name)
		if err != nil {
			if slices.Contains(requiredTools, name) {
				missing = append(missing, name)
			}
			continue
		}
		if err := b.add(path); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this machine lacks %s, which the tests run", strings.Join(missing, ", "))
	}
	return nil
}

// plugins adds what iptables and tc load by themselves.
func (b *base) plugins() error {
	for _, pattern := range []string{"/usr/lib/*/xtables/*.so", "/usr/lib/*/tc/*", "/usr/lib/tc/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := b.add(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// config adds names of protocols, routing tables and users.
func (b *base) config() error {
	var files []string
	for _, pattern := range []string{"/etc/protocols", "/etc/services", "/etc/ethertypes", "/etc/iproute2/*", "/usr/share/iproute2/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || !st.Mode().IsRegular() {
			continue
		}
		b.archive.File(f, strings.TrimPrefix(f, "/"))
	}
	b.archive.Text("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n", 0o644)
	b.archive.Text("etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644)
	b.archive.Text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n", 0o644)
	b.archive.Text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644)
	return nil
}

// add copies a program or library to where it is, links on the way to it
// included, and all of what it loads.
func (b *base) add(path string) error {
	name := merged(path)
	if b.done[name] {
		return nil
	}
	b.done[name] = true
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if merged(real) != name {
		b.archive.Symlink("/"+merged(real), name)
		return b.add(real)
	}
	b.archive.File(real, name)
	libs, err := b.libraries(real)
	if err != nil {
		return err
	}
	for _, lib := range libs {
		if err := b.addLibrary(lib); err != nil {
			return err
		}
	}
	return nil
}

// addLibrary copies a library under the name that programs ask for.
func (b *base) addLibrary(path string) error {
	name := merged(path)
	if b.done[name] {
		return nil
	}
	b.done[name] = true
	b.archive.File(path, name)
	return nil
}

// merged is a path in a tree where /bin, /sbin and /lib* are below /usr,
// without the leading slash.
func merged(path string) string {
	path = strings.TrimPrefix(filepath.Clean(path), "/")
	first, _, _ := strings.Cut(path, "/")
	if slices.Contains(links, first) {
		return "usr/" + path
	}
	return path
}

var lddPath = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// libraries returns what ldd(1) says, the program loader included.
func (b *base) libraries(file string) ([]string, error) {
	cmd := exec.CommandContext(b.ctx, "ldd", file)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") {
			return nil, nil
		}
		return nil, fmt.Errorf("ldd %s: %w: %s", file, err, out)
	}
	var libs []string
	for _, m := range lddPath.FindAllStringSubmatch(string(out), -1) {
		libs = append(libs, m[1])
	}
	return libs, nil
}

// BaseKey returns a short text that changes when one of the tools does.
func BaseKey() (string, error) {
	h := sha256.New()
	for _, name := range slices.Concat(requiredTools, otherTools) {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		st, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, path, st.Size(), st.ModTime().UnixNano())
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:12], nil
}
