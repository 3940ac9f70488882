// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/ipalloc"
)

// blindTries is how many addresses are tried one by one before the directory
// is listed: nearly always the first is free, and a dense pool costs one
// listing instead of a system call for each taken address.
const blindTries = 16

// reserve takes an address of the set for owner: the wanted one, or the next
// free one in round-robin order. Errors: 103 when the wanted address is taken,
// 104 when none is free.
func (s *store) reserve(owner string, set ipalloc.Set, setIndex int, want request) (netip.Addr, error) {
	f, err := s.newFile(owner)
	if err != nil {
		return netip.Addr{}, err
	}
	defer f.discard()
	var addr netip.Addr
	if want.addr.IsValid() {
		addr, err = s.takeWanted(f, want, set)
	} else {
		addr, err = s.takeNext(f, set, setIndex)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	s.indexAdd(owner, addr)
	// Losing this only costs the round robin; upstream writes it the same way.
	if err := overwrite(s.lastPath(setIndex), addr.String()); err != nil {
		return netip.Addr{}, errors.Join(err, s.release(owner, addr))
	}
	return addr, nil
}

func (s *store) takeWanted(f *unnamed, want request, set ipalloc.Set) (netip.Addr, error) {
	ok, err := s.take(f, want.addr)
	if err == nil && !ok && s.reclaim() {
		ok, err = s.take(f, want.addr)
	}
	if err == nil && !ok {
		err = cnierr.New(cnierr.CodeConflict, fmt.Sprintf("%s %q: the address is not available in range set %s", want.key, want.addr, set), "")
	}
	return want.addr, err
}

func (s *store) takeNext(f *unnamed, set ipalloc.Set, setIndex int) (netip.Addr, error) {
	for {
		addr, err := s.tryNext(f, set, setIndex)
		if err != nil || addr.IsValid() {
			return addr, err
		}
		// Nothing free: whatever a crash or an earlier boot has left goes first.
		if !s.reclaim() {
			return addr, cnierr.New(cnierr.CodeExhausted, "no IP addresses available in range set: "+set.String(), "")
		}
	}
}

func (s *store) tryNext(f *unnamed, set ipalloc.Set, setIndex int) (netip.Addr, error) {
	var taken map[netip.Addr]fs.DirEntry
	tries := 0
	for addr := range set.After(s.last(setIndex)) {
		if tries++; tries > blindTries && taken == nil {
			var err error
			if taken, err = s.names(); err != nil {
				return netip.Addr{}, err
			}
		}
		if _, ok := taken[addr]; ok {
			continue
		}
		if ok, err := s.take(f, addr); err != nil || ok {
			return addr, err
		}
	}
	return netip.Addr{}, nil
}

// take gives the prepared file the name of an address. It reports false when
// the address is taken; a broken file there is removed, since under the lock
// no process can be about to write it.
func (s *store) take(f *unnamed, addr netip.Addr) (bool, error) {
	for range 2 {
		s.changed = true
		err := f.link(s.path(addr))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return false, err
		}
		owner, err := s.read(addr)
		if err != nil || owner != "" {
			return false, nil //nolint:nilerr // taken, by whatever it is
		}
		if err := os.Remove(s.path(addr)); err != nil {
			return false, err
		}
	}
	return false, nil
}

func (s *store) lastPath(setIndex int) string {
	return filepath.Join(s.dir, lastPrefix+strconv.Itoa(setIndex))
}

// overwrite replaces the content of a small file that may be lost. Emptying it
// first, as os.WriteFile does, makes ext4 start writing to the disk at close.
func overwrite(path, content string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if fi, serr := f.Stat(); err == nil && serr == nil && fi.Size() > int64(len(content)) {
		err = f.Truncate(int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// last returns the address reserved last from a set, the zero Addr when that
// is unknown.
func (s *store) last(setIndex int) netip.Addr {
	b, err := os.ReadFile(s.lastPath(setIndex))
	if err != nil {
		return netip.Addr{}
	}
	addr, err := parseAddr(strings.TrimSpace(string(b)))
	if err != nil {
		return netip.Addr{}
	}
	return addr
}

// unnamed is a reservation that has its content but no name yet.
type unnamed struct {
	owner string
	mtime time.Time
	temp  *os.File // nil: the file system cannot make unnamed files
}

// newFile prepares a reservation as an unnamed file in the directory, so that
// a crash leaves either nothing or the whole reservation.
func (s *store) newFile(owner string) (*unnamed, error) {
	f := &unnamed{owner: owner, mtime: s.node.tagged(time.Now())}
	fd, err := unix.Open(s.dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		// Not every file system can; what is really wrong shows at link.
		return f, nil //nolint:nilerr // see above
	}
	f.temp = os.NewFile(uintptr(fd), s.dir)
	if err := f.fill(f.temp); err != nil {
		f.discard()
		return nil, err
	}
	return f, nil
}

func (f *unnamed) fill(to *os.File) error {
	if _, err := to.WriteString(f.owner); err != nil {
		return err
	}
	if f.mtime.IsZero() {
		return nil
	}
	ts := unix.NsecToTimespec(f.mtime.UnixNano())
	// Without the mark, the address is not reclaimed after a reboot: no error.
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(to), []unix.Timespec{ts, ts}, 0)
	return nil
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// link names the file. The error is fs.ErrExist when the name is taken. Where
// unnamed files are impossible it creates and fills the file as upstream
// does; a crash in between leaves a broken file, which counts as free.
func (f *unnamed) link(path string) error {
	if f.temp != nil {
		err := unix.Linkat(unix.AT_FDCWD, fdPath(f.temp), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		if err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.fill(out)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}

func (f *unnamed) discard() {
	if f.temp != nil {
		f.temp.Close()
	}
}
