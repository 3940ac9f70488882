// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// paths are the places of one datapath, all functions of the bpffs, the run directory and the network namespace. Names on a
// bpffs never hold a dot: the kernel refuses some, and keeps them for its own use.
type paths struct {
	bpffs bpffs
	dir   string // <bpffs>/sluice/v2/<ns>
	lock  string
	state string // the decision

	reserved string // the reserved ports that the map holds
	waiting  string // published ports that others have taken over

	displaced string // of an earlier build: addresses that others had taken over
}

const (
	buildPrefix = "b" // committed set of programs: progs/b<hash>
	freshPrefix = "t" // set being loaded: progs/t<hash>
)

func newPaths(o Options, b bpffs, ns string) paths {
	return paths{
		bpffs: b,
		dir:   filepath.Join(versionDir(b.path()), ns),
		lock:  filepath.Join(o.RunDir, "datapath-"+ns+".lock"),
		state: filepath.Join(o.RunDir, "datapath-"+ns+".json"),

		reserved: filepath.Join(o.RunDir, "datapath-"+ns+".ports"),
		waiting:  filepath.Join(o.RunDir, "datapath-"+ns+".waiting"),

		displaced: filepath.Join(o.RunDir, "datapath-"+ns+".displaced"),
	}
}

func versionDir(at string) string {
	return filepath.Join(at, "sluice", "v"+strconv.Itoa(PinVersion))
}

func (p paths) maps() string              { return filepath.Join(p.dir, "maps") }
func (p paths) progs() string             { return filepath.Join(p.dir, "progs") }
func (p paths) links() string             { return filepath.Join(p.dir, "links") }
func (p paths) clsact() string            { return filepath.Join(p.dir, "clsact") }
func (p paths) mapPin(name string) string { return filepath.Join(p.maps(), name) }
func (p paths) buildDir(id string) string { return filepath.Join(p.progs(), buildPrefix+id) }
func (p paths) freshDir(id string) string { return filepath.Join(p.progs(), freshPrefix+id) }
func (p paths) routedDevs() string        { return filepath.Join(p.dir, "routed_devs") }
func (p paths) routedMark(index int) string {
	return filepath.Join(p.routedDevs(), "dev"+strconv.Itoa(index))
}
func (p paths) podns() string { return filepath.Join(p.dir, "podns") }
func (p paths) podnsMark(number uint32) string {
	return filepath.Join(p.podns(), "dev"+strconv.FormatUint(uint64(number), 10))
}
func (p paths) clsactMark(index int) string {
	return filepath.Join(p.clsact(), "dev"+strconv.Itoa(index))
}
func (p paths) linkPin(index int, h hook) string {
	return filepath.Join(p.links(), linkName(index, h))
}

func linkName(index int, h hook) string { return "dev" + strconv.Itoa(index) + "_" + h.name }

// parseLinkName undoes linkName; false for a name that is not ours.
func parseLinkName(name string) (index int, h hook, ok bool) {
	dev, hookName, found := strings.Cut(strings.TrimPrefix(name, "dev"), "_")
	if !found || !strings.HasPrefix(name, "dev") {
		return 0, hook{}, false
	}
	index, err := strconv.Atoi(dev)
	if err != nil || index <= 0 {
		return 0, hook{}, false
	}
	for _, h := range allHooks() {
		if h.name == hookName {
			return index, h, true
		}
	}
	return 0, hook{}, false
}

// committed returns the id of the set of programs in force; false when none is.
func (p paths) committed() (string, bool) {
	entries, err := os.ReadDir(p.progs())
	if err != nil {
		return "", false
	}
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), buildPrefix); ok && e.IsDir() {
			return id, true
		}
	}
	return "", false
}

// loaded reports whether every pin of a committed build is there. Somebody may have removed some by hand: the next Open then
// loads again. So it does where there is another set, or the beginning of one: whoever was to load or to remove it was killed
// or has failed, and some devices may have its programs. Every ADD asks, so it reads three directories instead of looking for
// each pin by its path.
func (p paths) loaded(id string) bool {
	sets, err := names(p.progs())
	if err != nil || len(sets) != 1 || sets[0] != buildPrefix+id {
		return false
	}
	programs, err := names(p.buildDir(id))
	if err != nil {
		return false
	}
	maps, err := names(p.maps())
	if err != nil {
		return false
	}
	for _, h := range loadHooks() {
		if !slices.Contains(programs, h.program) {
			return false
		}
	}
	if !slices.Contains(programs, loadConstsName) {
		return false
	}
	if !slices.Contains(programs, noSockLBDir) {
		for _, h := range sockHooks() {
			if !slices.Contains(programs, h.program) {
				return false
			}
		}
	}
	for _, name := range sharedMaps() {
		if !slices.Contains(maps, name) {
			return false
		}
	}
	return true
}

// make creates the tree. 0700: who can open a pin can change what packets do.
func (p paths) make() error {
	// The first directory by itself, which follows no symbolic link: below one that is root's alone no other user makes anything.
	if err := os.Mkdir(filepath.Join(p.bpffs.path(), "sluice"), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make pin directory: %w", err)
	}
	if err := p.checkOwners(); err != nil {
		return err
	}
	for _, dir := range []string{p.maps(), p.progs(), p.links(), p.clsact(), p.routedDevs(), p.podns(), p.edt()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make pin directory: %w", err)
		}
	}
	if err := p.makeNetnsInode(); err != nil {
		return fmt.Errorf("note network namespace: %w", err)
	}
	return nil
}

// repair makes directories anew that somebody has removed by hand, pins and all: a link without a place for its pin goes with
// the process that makes it.
func (p paths) repair() error {
	for _, dir := range []string{p.links(), p.clsact(), p.podns(), p.edt()} {
		if unix.Access(dir, unix.F_OK) != nil {
			return p.make()
		}
	}
	return nil
}

// names lists a directory of pins; a missing one is empty.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// namespaceName names the calling thread's network namespace: "n" and its cookie, which is never used twice until the next
// boot, or "i" and its inode where the kernel has no SO_NETNS_COOKIE (before 5.14).
func namespaceName() (string, error) {
	cookie, err := soNetnsCookie()
	if err != nil {
		return "", fmt.Errorf("name network namespace: %w", err)
	}
	if cookie != 0 {
		return "n" + strconv.FormatUint(cookie, 10), nil
	}
	inode, err := namespaceInode()
	return "i" + strconv.FormatUint(inode, 10), err
}

func namespaceInode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("name network namespace: %w", err)
	}
	return st.Ino, nil
}
