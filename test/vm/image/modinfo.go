// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// module is what a kernel module says of itself.
type module struct {
	name    string // with underscores, as the kernel has it
	path    string // below the directory of the release, uncompressed
	file    string // on this machine
	depends []string
	pre     []string // soft dependencies, tried before
	aliases []string
}

// wantedModules is what a guest gets, by path below the release's directory:
// all of networking, the devices of a CNI plugin, overlayfs and virtio.
var wantedModules = regexp.MustCompile(`^kernel/(` +
	`net/(bridge|netfilter|ipv4|ipv6|sched|8021q|llc|802|core|xfrm|packet|unix|sctp|mpls|vmw_vsock|ife|psample)/` +
	`|drivers/net/(veth|dummy|tun|macvlan|macvtap|tap|ifb|vrf|geneve|vxlan|netkit|bareudp|net_failover|virtio_net)\.` +
	`|drivers/net/(vxlan|wireguard|bonding|ipvlan|geneve)/` +
	`|drivers/(virtio|block/virtio_blk|char/hw_random/virtio)` +
	`|net/core/failover|fs/overlayfs/)`)

// findModules reads the wanted modules of a tree (.../lib/modules/RELEASE) and
// all of what they depend on. Compressed ones are uncompressed in place.
func findModules(ctx context.Context, tree string) ([]module, error) {
	if err := uncompress(ctx, tree); err != nil {
		return nil, err
	}
	all := map[string]module{}
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".ko") {
			return err
		}
		rel, err := filepath.Rel(tree, path)
		if err != nil {
			return err
		}
		name := moduleName(strings.TrimSuffix(filepath.Base(path), ".ko"))
		all[name] = module{name: name, path: rel, file: path}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return closure(all)
}

// closure reads the wanted modules, then the ones these name, and so on.
func closure(all map[string]module) ([]module, error) {
	var todo []string
	for name, m := range all {
		if wantedModules.MatchString(m.path) {
			todo = append(todo, name)
		}
	}
	if len(todo) == 0 {
		return nil, errors.New("the package has none of the wanted modules")
	}
	var out []module
	seen := map[string]bool{}
	for len(todo) > 0 {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		m, ok := all[name]
		if !ok || seen[name] {
			continue // built in
		}
		seen[name] = true
		if err := m.read(); err != nil {
			return nil, err
		}
		out = append(out, m)
		todo = append(append(todo, m.depends...), m.pre...)
	}
	return out, nil
}

// moduleName is how the kernel spells a module's name.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// read takes the fields of section .modinfo (include/linux/module.h).
func (m *module) read() error {
	f, err := elf.Open(m.file)
	if err != nil {
		return fmt.Errorf("module %s: %w", m.name, err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return fmt.Errorf("module %s has no .modinfo", m.name)
	}
	data, err := s.Data()
	if err != nil {
		return fmt.Errorf("module %s: %w", m.name, err)
	}
	for field := range bytes.SplitSeq(data, []byte{0}) {
		key, value, _ := strings.Cut(string(field), "=")
		switch key {
		case "alias":
			m.aliases = append(m.aliases, value)
		case "depends":
			m.depends = append(m.depends, strings.FieldsFunc(moduleName(value), func(r rune) bool { return r == ',' })...)
		case "softdep":
			m.pre = append(m.pre, softdep(value)...)
		}
	}
	return nil
}

// softdep returns the modules of "pre: a b post: c", the later ones too: none
// of them hurts.
func softdep(value string) []string {
	var out []string
	for f := range strings.FieldsSeq(value) {
		if !strings.HasSuffix(f, ":") {
			out = append(out, moduleName(f))
		}
	}
	return out
}

// uncompress unpacks every module of a tree, many with one process.
func uncompress(ctx context.Context, tree string) error {
	files := map[string][]string{}
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err == nil && strings.HasSuffix(path, ".ko"+ext) && ext != ".ko" {
			files[ext] = append(files[ext], path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for ext, paths := range files {
		tool := map[string][]string{".xz": {"xz", "-dqf"}, ".zst": {"zstd", "-dqf", "--rm"}, ".gz": {"gzip", "-dqf"}}[ext]
		if tool == nil {
			return fmt.Errorf("modules are compressed in an unknown way: %s", ext)
		}
		for len(paths) > 0 {
			n := min(len(paths), 500)
			cmd := exec.CommandContext(ctx, tool[0], append(tool[1:], paths[:n]...)...)
			cmd.Env = append(os.Environ(), "LC_ALL=C")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("unpack modules by %s: %w: %s", tool[0], err, out)
			}
			paths = paths[n:]
		}
	}
	return nil
}
