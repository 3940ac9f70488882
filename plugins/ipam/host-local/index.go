// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// The index answers "which addresses has this owner" without reading all
// reservations: a file per owner with its addresses, one a line. It is a cache.
// It counts only while the directory's mtime is the one we gave it after our
// last change (the stamp); any file that another program adds or removes gives
// the directory another mtime, and the index is rebuilt. The stamp has random
// nanoseconds, since the kernel's own timestamps are coarse: two changes within
// one clock tick would otherwise look like one.
const (
	ownersName = "owners"
	stampName  = "stamp"
)

func (s *store) ownerPath(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return filepath.Join(s.side, ownersName, hex.EncodeToString(sum[:16]))
}

// clean reports whether the index is complete.
func (s *store) clean() bool {
	want, err := os.ReadFile(filepath.Join(s.side, stampName))
	if err != nil {
		return false
	}
	if owners, err := os.Stat(filepath.Join(s.side, ownersName)); err != nil || !owners.IsDir() {
		return false
	}
	fi, err := os.Stat(s.dir)
	return err == nil && string(want) == stampOf(fi)
}

func stampOf(fi fs.FileInfo) string { return fi.ModTime().UTC().Format(time.RFC3339Nano) + "\n" }

// stamp declares the index complete. A crash before it leaves the old stamp,
// which no longer fits.
func (s *store) stamp() {
	path := filepath.Join(s.side, stampName)
	now := time.Now()
	t := time.Unix(now.Unix(), 1+rand.Int64N(1e9-1)) // no secret, only unlike the kernel's
	ts := unix.NsecToTimespec(t.UnixNano())
	err := unix.UtimesNanoAt(unix.AT_FDCWD, s.dir, []unix.Timespec{ts, ts}, 0)
	var fi fs.FileInfo
	if err == nil {
		fi, err = os.Stat(s.dir)
	}
	if err == nil && !fi.ModTime().Equal(t) {
		err = errors.New("the file system does not keep nanoseconds")
	}
	if err == nil {
		err = overwrite(path, stampOf(fi))
	}
	if err != nil {
		s.log.Debug("the index is not kept", log.Error(err))
		_ = os.Remove(path)
	}
}

// indexLookup returns the addresses noted for an owner; the caller verifies
// them against the files.
func (s *store) indexLookup(owner string) ([]netip.Addr, error) {
	b, err := os.ReadFile(s.ownerPath(owner))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []netip.Addr
	for _, l := range strings.Fields(string(b)) {
		addr, perr := netip.ParseAddr(l)
		if perr != nil {
			return nil, perr
		}
		out = append(out, addr)
	}
	return out, err
}

// indexAdd and indexRemove keep the index. When they fail it is given up for
// this call: without a stamp the next one rebuilds it.
func (s *store) indexAdd(owner string, addr netip.Addr) {
	if !s.indexed {
		return
	}
	f, err := os.OpenFile(s.ownerPath(owner), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(addr.String() + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.dropIndex(err)
	}
}

func (s *store) indexRemove(owner string, addr netip.Addr) {
	if !s.indexed {
		return
	}
	addrs, err := s.indexLookup(owner)
	rest := ""
	for _, a := range addrs {
		if a != addr {
			rest += a.String() + "\n"
		}
	}
	switch {
	case err != nil:
	case rest == "":
		err = file.Remove(s.ownerPath(owner))
	default:
		err = os.WriteFile(s.ownerPath(owner), []byte(rest), 0o600)
	}
	if err != nil {
		s.dropIndex(err)
	}
}

func (s *store) dropIndex(err error) {
	s.log.Warn("the index is given up; the next call rebuilds it", log.Error(err))
	s.indexed = false
	_ = os.Remove(filepath.Join(s.side, stampName))
}

// rebuild writes the index of all reservations.
func (s *store) rebuild(all []reservation) error {
	_ = os.Remove(filepath.Join(s.side, stampName))
	dir := filepath.Join(s.side, ownersName)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	owners := map[string]string{}
	for _, r := range all {
		owners[r.owner] += r.addr.String() + "\n"
	}
	for owner, lines := range owners {
		if err := os.WriteFile(s.ownerPath(owner), []byte(lines), 0o600); err != nil {
			return err
		}
	}
	return nil
}
