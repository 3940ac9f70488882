// SPDX-License-Identifier: Apache-2.0

package pintree

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

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/pkg/file"
)

// Paths are the places of one datapath, all functions of the bpffs, the run directory and the network namespace. Names on a
// bpffs never hold a dot: the kernel refuses some, and keeps them for its own use.
type Paths struct {
	BPFFS BPFFS
	Dir   string // <bpffs>/sluice/v2/<ns>
	Lock  string
	State string // the decision

	Reserved string // the reserved ports that the map holds
	Look     string // what the last look at the node has left for the next one
	Waiting  string // published ports that others have taken over
	FQ       string // whether the kernel has sch_fq, as it said last
}

const (
	BuildPrefix = "b"         // committed set of programs: progs/b<hash>
	freshPrefix = "t"         // set being loaded: progs/t<hash>
	SockPrefix  = "cg_"       // of the pins of cgroup links
	NoSockLBDir = "no_socklb" // in a set of programs: the kernel refused those for sockets
)

// NewPaths returns the places of the network namespace ns.
func NewPaths(runDir string, b BPFFS, ns string) Paths {
	return Paths{
		BPFFS: b,
		Dir:   filepath.Join(versionDir(b.Path()), ns),
		Lock:  filepath.Join(runDir, "datapath-"+ns+".lock"),
		State: filepath.Join(runDir, "datapath-"+ns+".json"),

		Reserved: filepath.Join(runDir, "datapath-"+ns+".ports"),
		Look:     filepath.Join(runDir, "datapath-"+ns+".look"),
		Waiting:  filepath.Join(runDir, "datapath-"+ns+".waiting"),
		FQ:       filepath.Join(runDir, "datapath-"+ns+".fq"),
	}
}

func versionDir(at string) string {
	return filepath.Join(at, "sluice", "v"+strconv.Itoa(PinVersion))
}

// Maps is the directory of the pins of maps.
func (p Paths) Maps() string { return filepath.Join(p.Dir, "maps") }

// Progs is the directory of the sets of programs.
func (p Paths) Progs() string { return filepath.Join(p.Dir, "progs") }

// Links is the directory of the pins of links.
func (p Paths) Links() string { return filepath.Join(p.Dir, "links") }

// Clsact is the directory of the marks of qdiscs that Sluice made.
func (p Paths) Clsact() string { return filepath.Join(p.Dir, "clsact") }

// MapPin is the pin of a map.
func (p Paths) MapPin(name string) string { return filepath.Join(p.Maps(), name) }

// BuildDir is the directory of a committed set of programs.
func (p Paths) BuildDir(id string) string { return filepath.Join(p.Progs(), BuildPrefix+id) }

// FreshDir is the directory of a set that is being loaded.
func (p Paths) FreshDir(id string) string { return filepath.Join(p.Progs(), freshPrefix+id) }

// RoutedDevs is the directory of the marks of devices that packets of pods are routed from.
func (p Paths) RoutedDevs() string { return filepath.Join(p.Dir, "routed_devs") }

// RoutedMark is the mark of one.
func (p Paths) RoutedMark(index int) string {
	return filepath.Join(p.RoutedDevs(), "dev"+strconv.Itoa(index))
}

// Podns is the directory of the places of podns devices.
func (p Paths) Podns() string { return filepath.Join(p.Dir, "podns") }

// PodnsMark is the place of one.
func (p Paths) PodnsMark(number uint32) string {
	return filepath.Join(p.Podns(), "dev"+strconv.FormatUint(uint64(number), 10))
}

// ClsactMark is the mark of the qdisc of a device.
func (p Paths) ClsactMark(index int) string {
	return filepath.Join(p.Clsact(), "dev"+strconv.Itoa(index))
}

// LinkPin is the pin of the link at a hook of a device.
func (p Paths) LinkPin(index int, h hook.Hook) string {
	return filepath.Join(p.Links(), LinkName(index, h))
}

// LinkName is its name.
func LinkName(index int, h hook.Hook) string { return "dev" + strconv.Itoa(index) + "_" + h.Name }

// ParseLinkName undoes linkName; false for a name that is not ours.
func ParseLinkName(name string) (index int, h hook.Hook, ok bool) {
	dev, hookName, found := strings.Cut(strings.TrimPrefix(name, "dev"), "_")
	if !found || !strings.HasPrefix(name, "dev") {
		return 0, hook.Hook{}, false
	}
	index, err := strconv.Atoi(dev)
	if err != nil || index <= 0 {
		return 0, hook.Hook{}, false
	}
	for _, h := range hook.All() {
		if h.Name == hookName {
			return index, h, true
		}
	}
	return 0, hook.Hook{}, false
}

// Committed returns the id of the set of programs in force; false when none is.
func (p Paths) Committed() (string, bool) {
	entries, err := os.ReadDir(p.Progs())
	if err != nil {
		return "", false
	}
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), BuildPrefix); ok && e.IsDir() {
			return id, true
		}
	}
	return "", false
}

// Loaded reports whether every pin of a committed build is there. An operator may have removed some by hand: the next Open then
// loads again. So it does where there is another set, or the beginning of one: the process that was to load or to remove it was killed
// or has failed, and some devices may have its programs. Every ADD asks, so it reads three directories instead of looking for
// each pin by its path.
func (p Paths) Loaded(id string) bool { return p.loaded(id, SharedMaps(), hook.AlwaysLoaded()) }

// LoadedByAnother reports whether the pins are there that every build of this pin version has. Programs for single pods, and maps, came
// with later ones.
func (p Paths) LoadedByAnother(id string) bool {
	maps := slices.DeleteFunc(SharedMaps(), func(name string) bool { return slices.Contains(LaterMaps(), name) })
	return p.loaded(id, maps, slices.Concat(hook.OfPod(), hook.OfUplink(false)))
}

// loaded is Loaded where only some maps and programs are asked for.
func (p Paths) loaded(id string, shared []string, hooks []hook.Hook) bool {
	sets, err := Names(p.Progs())
	if err != nil || len(sets) != 1 || sets[0] != BuildPrefix+id {
		return false
	}
	programs, err := Names(p.BuildDir(id))
	if err != nil {
		return false
	}
	maps, err := Names(p.Maps())
	if err != nil {
		return false
	}
	for _, h := range hooks {
		if !slices.Contains(programs, h.Program) {
			return false
		}
	}
	if !slices.Contains(programs, LoadConstsName) {
		return false
	}
	if !slices.Contains(programs, NoSockLBDir) {
		for _, h := range hook.Sockets() {
			if !slices.Contains(programs, h.Program) {
				return false
			}
		}
	}
	for _, name := range shared {
		if !slices.Contains(maps, name) {
			return false
		}
	}
	return true
}

// Make creates the tree. 0700: who can open a pin can change what packets do.
func (p Paths) Make() error {
	// The first directory by itself, which follows no symbolic link: below one that is root's alone no other user makes anything.
	if err := os.Mkdir(filepath.Join(p.BPFFS.Path(), "sluice"), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make pin directory: %w", err)
	}
	if err := p.CheckOwners(); err != nil {
		return err
	}
	for _, dir := range []string{p.Maps(), p.Progs(), p.Links(), p.Clsact(), p.RoutedDevs(), p.Podns(), p.EDT()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make pin directory: %w", err)
		}
	}
	if err := p.makeNetnsInode(); err != nil {
		return fmt.Errorf("note network namespace: %w", err)
	}
	return nil
}

// repair makes directories anew that an operator has removed by hand, pins and all: a link without a place for its pin goes with
// the process that makes it.
func (p Paths) repair() error {
	for _, dir := range []string{p.Links(), p.Clsact(), p.Podns(), p.EDT()} {
		if unix.Access(dir, unix.F_OK) != nil {
			return p.Make()
		}
	}
	return nil
}

// Names lists a directory of pins; a missing one is empty.
func Names(dir string) ([]string, error) {
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

// Exists reports whether there is anything at path. It follows no symbolic link.
func Exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

// RemovePin is file.Remove for a pin or a mark of a device that the maps no longer name. On a read-only bpffs it stays, and GC removes
// it later: without an entry in the maps its program lets everything pass. A DEL must not wait for an administrator.
func RemovePin(path string) error {
	if err := file.Remove(path); !errors.Is(err, unix.EROFS) {
		return err
	}
	return nil
}

// namespaceName names the calling thread's network namespace: "n" and its cookie, which is never used twice until the next
// boot, or "i" and its inode where the kernel has no SO_NETNS_COOKIE (before 5.14).
func namespaceName() (string, error) {
	cookie, err := SoNetnsCookie()
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

// EDT is the directory of the places of rate limits.
func (p Paths) EDT() string { return filepath.Join(p.Dir, "edt") }

// EDTMark is the place of one.
func (p Paths) EDTMark(number uint32) string {
	return filepath.Join(p.EDT(), "dev"+strconv.FormatUint(uint64(number), 10))
}

// SockPin is the pin of a cgroup link.
func (p Paths) SockPin(h hook.Socket) string { return filepath.Join(p.Links(), SockPrefix+h.Name) }

// Commit makes the fresh set of programs the one in force. What is left of a set of the same name, some of whose pins an operator
// removed, goes first: a directory cannot be renamed over one that is not empty.
func Commit(fresh, committed string) error {
	if err := os.RemoveAll(committed); err != nil {
		return fmt.Errorf("commit programs: %w", err)
	}
	if err := os.Rename(fresh, committed); err != nil {
		return fmt.Errorf("commit programs: %w", err)
	}
	return nil
}

// LoadConstsName is a symbolic link to nowhere beside the programs, whose target tells what was drawn for them.
const LoadConstsName = "load_consts"
