// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// The upstream plugin's format. A file named as the address holds the owner;
// these names are not addresses.
const (
	lineBreak  = "\r\n"
	lockName   = "lock"
	lastPrefix = "last_reserved_ip."
	// sideDir holds what is ours, beside the networks: no network's name can
	// start with a dot.
	sideDir = ".sluice"
)

// ownerKey is a reservation's content: container, CR LF, interface. Without an
// interface it is what versions before 0.7 of upstream wrote.
func ownerKey(id, ifname string) string {
	id = strings.TrimSpace(id)
	if ifname == "" {
		return id
	}
	return id + lineBreak + ifname
}

// reservation is one address file.
type reservation struct {
	addr  netip.Addr
	owner string // as ownerKey writes it; empty: a crash left the file without
	info  fs.FileInfo
}

// store is the locked directory of one network. It is used by one goroutine.
type store struct {
	dir  string // <dataDir>/<network>, upstream's
	side string // <dataDir>/.sluice/<network>, ours
	lock *os.File
	node Node
	log  *log.Logger

	indexed bool // the index by owner is complete
	changed bool // the directory changed since the index was stamped
}

// openStore locks the directory of a network and brings index and notes up to
// date. Without create, a missing directory is fs.ErrNotExist. The caller must
// close the store.
func openStore(ctx context.Context, c *config, node Node, logger *log.Logger, create bool) (*store, error) {
	if c.network == "" || c.network != filepath.Base(c.network) || strings.HasPrefix(c.network, ".") {
		return nil, cnierr.Config("name", c.network, "not a network name")
	}
	s := &store{
		dir: filepath.Join(c.dataDir, c.network), side: filepath.Join(c.dataDir, sideDir, c.network),
		node: node, log: logger,
	}
	if create {
		if err := os.MkdirAll(s.dir, 0o755); err != nil { //nolint:gosec // upstream's mode
			return nil, err
		}
	}
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	if err := s.prepare(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// acquire takes the lock the upstream plugin takes. It waits as long as the
// verb may last; the error is then "try again" (11).
func (s *store) acquire(ctx context.Context) error {
	f, err := os.OpenFile(filepath.Join(s.dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = file.Lock(ctx, f)
	if cause := ctx.Err(); err != nil && cause != nil {
		return cnierr.Wrap(cnierr.CodeTryAgain, cause, "another process holds %s", f.Name())
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	s.lock = f
	return nil
}

// close stamps the index when the directory changed, and unlocks.
func (s *store) close() {
	if s.indexed && s.changed {
		s.stamp()
	}
	s.lock.Close()
}

// read returns the owner of an address, "" when its file is broken: empty, or
// blank, or the zeroes some file systems leave after a power cut.
func (s *store) read(addr netip.Addr) (string, error) {
	b, err := os.ReadFile(s.path(addr))
	if err != nil {
		return "", err
	}
	return string(bytes.TrimFunc(b, func(r rune) bool { return r == 0 || unicode.IsSpace(r) })), nil
}

func (s *store) path(addr netip.Addr) string { return filepath.Join(s.dir, addr.String()) }

// names returns the address files of the directory. Names that are no
// addresses, and whatever is no regular file, are not ours to judge.
func (s *store) names() (map[netip.Addr]fs.DirEntry, error) {
	entries, err := os.ReadDir(s.dir)
	out := make(map[netip.Addr]fs.DirEntry, len(entries))
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err == nil && addr.Zone() == "" && e.Type().IsRegular() && addr.String() == e.Name() {
			out[addr] = e
		}
	}
	return out, err
}

// scan reads every reservation. Files that vanish in between (an operator's rm)
// are left out. So are those that cannot be read, which unread tells: each is
// taken and has no owner, as to upstream.
func (s *store) scan() (list []reservation, unread, err error) {
	names, err := s.names()
	list = make([]reservation, 0, len(names))
	for addr, e := range names {
		owner, rerr := s.read(addr)
		info, ierr := e.Info()
		if rerr = errors.Join(rerr, ierr); rerr != nil {
			if !errors.Is(rerr, fs.ErrNotExist) {
				unread = errors.Join(unread, rerr)
			}
			continue
		}
		list = append(list, reservation{addr: addr, owner: owner, info: info})
	}
	return list, unread, err
}

// owned returns the reservations of an attachment. A file that names only the
// container counts when no file names container and interface, or always with
// legacy set.
func (s *store) owned(id, ifname string, legacy bool) ([]reservation, error) {
	have, err := s.find(ownerKey(id, ifname))
	if err != nil || (len(have) > 0 && !legacy) || ifname == "" {
		return have, err
	}
	old, err := s.find(ownerKey(id, ""))
	return append(have, old...), err
}

// find returns the reservations with exactly this content: by the index when
// it is complete, else by reading all of them.
func (s *store) find(owner string) ([]reservation, error) {
	if s.indexed {
		out, err := s.findIndexed(owner)
		if err == nil {
			return out, nil
		}
		s.dropIndex(err)
	}
	all, _, err := s.scan() // who opened the store has told what is unread
	var out []reservation
	for _, r := range all {
		if r.owner == owner {
			out = append(out, r)
		}
	}
	if len(out) > 0 {
		err = nil // the list is not whole; ours are found
	}
	return out, err
}

// findIndexed fails when the index is wrong: a file that another program has
// written in place leaves the directory's time as it was.
func (s *store) findIndexed(owner string) ([]reservation, error) {
	addrs, err := s.indexLookup(owner)
	out := make([]reservation, 0, len(addrs))
	for _, addr := range addrs {
		got, rerr := s.read(addr)
		if rerr == nil && got != owner {
			rerr = fmt.Errorf("%s is another's by now", addr)
		}
		err = errors.Join(err, rerr)
		out = append(out, reservation{addr: addr, owner: owner})
	}
	return out, err
}

// release frees an address if owner has it. Already free is success.
func (s *store) release(owner string, addr netip.Addr) error {
	got, err := s.read(addr)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && got != owner) {
		return nil
	}
	if err != nil {
		return err
	}
	s.changed = true
	if err := file.Remove(s.path(addr)); err != nil {
		return err
	}
	s.indexRemove(owner, addr)
	return nil
}
