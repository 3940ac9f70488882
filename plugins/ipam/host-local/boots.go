// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeid"
)

// After a reboot no pod of before exists, but its reservations do. A file may
// be removed only when it is certain that it is from before this boot, which
// program wrote it and whatever the clock says. The rule:
//
//  1. Every reservation we make or come across in a boot carries the boot's tag
//     in the nanoseconds of its mtime (1 of 10^9 values, from the boot id).
//  2. A note beside the directory lists the boots in which we were here, under
//     the machine's id.
//  3. In a later boot of the same machine, a file is from before if its tag is
//     that of a noted earlier boot, and its mtime lies before this boot began.
//
// What upstream writes in this boot has no such tag, so it stays. What it
// wrote in an earlier boot after our last visit stays too, until DEL or GC. On
// file systems that other machines may share, nothing is ever reclaimed.

// Node identifies the running system. Without both ids nothing is reclaimed.
type Node struct {
	MachineID string    // stays over reboots (/etc/machine-id)
	BootID    string    // differs in every boot
	Booted    time.Time // by the clock of now
}

// thisNode reads the running system's identity.
func thisNode() Node {
	var n Node
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return n
	}
	n.Booted = time.Now().Add(-time.Duration(up.Nano()))
	n.BootID, n.MachineID = nodeid.BootID(), nodeid.MachineID()
	return n
}

func (n Node) known() bool { return n.MachineID != "" && n.BootID != "" && !n.Booted.IsZero() }

// tag is the mark of a boot: nanoseconds, never zero, which is what file
// systems without nanoseconds show.
func tag(bootID string) int {
	sum := sha256.Sum256([]byte("sluice host-local " + bootID))
	return 1 + int(binary.BigEndian.Uint32(sum[:])%(1e9-1))
}

// tagged returns t with this boot's tag; the zero time when there is none.
func (n Node) tagged(t time.Time) time.Time {
	if !n.known() {
		return time.Time{}
	}
	return time.Unix(t.Unix(), int64(tag(n.BootID)))
}

// note is the list of boots, newest first.
type note struct {
	Version int      `json:"version"`
	Machine string   `json:"machine"`
	Boots   []string `json:"boots"`
}

const (
	noteName    = "boots.json"
	noteVersion = 1
	maxBoots    = 16
)

// readNote returns an empty note when there is none for this machine. A note
// that cannot be read proves nothing, so it is none.
func (s *store) readNote() note {
	var n note
	b, err := os.ReadFile(filepath.Join(s.side, noteName))
	if err != nil || json.Unmarshal(b, &n) != nil || n.Version != noteVersion || n.Machine != s.node.MachineID {
		return note{}
	}
	return n
}

// writeNote puts this boot first. It is durable: a note that a power cut has
// lost would keep addresses of that boot reserved.
func (s *store) writeNote(old note) error {
	boots := []string{s.node.BootID}
	for _, b := range old.Boots {
		if b != s.node.BootID && len(boots) < maxBoots {
			boots = append(boots, b)
		}
	}
	b, err := json.Marshal(note{Version: noteVersion, Machine: s.node.MachineID, Boots: boots})
	if err != nil {
		return err
	}
	return file.Write(filepath.Join(s.side, noteName), append(b, '\n'), file.Options{Sync: file.SyncContent})
}

// fromEarlierBoot is rule 3.
func (s *store) fromEarlierBoot(r reservation, n note) bool {
	if !s.node.known() || !r.info.ModTime().Before(s.node.Booted) {
		return false
	}
	return slices.ContainsFunc(n.Boots, func(boot string) bool {
		return boot != s.node.BootID && r.info.ModTime().Nanosecond() == tag(boot)
	})
}

// prepare brings index and notes up to date: everything in a new boot, the
// index when another program changed the directory, nothing otherwise.
func (s *store) prepare() error {
	if !localFS(s.dir) {
		s.node = Node{}
	}
	n := s.readNote()
	newBoot := s.node.known() && (len(n.Boots) == 0 || n.Boots[0] != s.node.BootID)
	if !newBoot && s.clean() {
		s.indexed = true
		return nil
	}
	all, unread, err := s.scan()
	if err != nil {
		return err
	}
	all = s.sweep(all, n)
	if err := os.MkdirAll(s.side, 0o700); err != nil {
		s.log.Warn("no place for the index; every call reads all reservations", log.String(log.KeyPath, s.side), log.Error(err))
		return nil
	}
	if newBoot {
		if err := s.writeNote(n); err != nil {
			s.log.Warn("reservations of this boot cannot be told after a reboot", log.String(log.KeyPath, s.side), log.Error(err))
			s.node = Node{}
		}
		n = s.readNote()
	}
	s.mark(all, n)
	if unread != nil { // an index without them would lose them when they can be read again
		s.log.Warn("reservations cannot be read, and their addresses stay taken; every call reads all the others", log.Error(unread))
		return nil
	}
	if err := s.rebuild(all); err != nil {
		s.log.Warn("the index cannot be written; every call reads all reservations", log.String(log.KeyPath, s.side), log.Error(err))
		return nil
	}
	s.indexed, s.changed = true, true
	return nil
}

// sweep removes broken files and those of an earlier boot, and returns the rest.
func (s *store) sweep(all []reservation, n note) []reservation {
	kept := all[:0]
	for _, r := range all {
		if r.owner != "" && !s.fromEarlierBoot(r, n) {
			kept = append(kept, r)
			continue
		}
		s.changed = true
		if err := file.Remove(s.path(r.addr)); err != nil {
			s.log.Warn("a stale reservation cannot be removed", log.Stringer(log.KeyAddress, r.addr), log.Error(err))
			kept = append(kept, r)
			continue
		}
		if s.indexed {
			s.indexRemove(r.owner, r.addr)
		}
		s.log.Info("removed a stale reservation", log.Stringer(log.KeyAddress, r.addr), log.Time("made", r.info.ModTime()))
	}
	return kept
}

// mark is rule 1 for files that others wrote. A tag of an earlier boot stays:
// the clock may prove it later.
func (s *store) mark(all []reservation, n note) {
	if !s.node.known() {
		return
	}
	for _, r := range all {
		ns := r.info.ModTime().Nanosecond()
		if slices.ContainsFunc(n.Boots, func(b string) bool { return ns == tag(b) }) {
			continue
		}
		t := s.node.tagged(r.info.ModTime())
		if err := os.Chtimes(s.path(r.addr), t, t); err != nil {
			s.log.Warn("a reservation cannot be marked", log.Stringer(log.KeyAddress, r.addr), log.Error(err))
		}
	}
}

// reclaim looks again for files that may go, when a pool is exhausted: the
// clock may have been wrong at the first visit of this boot. It reports whether
// there were any.
func (s *store) reclaim() bool {
	all, unread, err := s.scan()
	if err = errors.Join(err, unread); err != nil {
		s.log.Warn("looking for stale reservations", log.Error(err))
	}
	before := len(all)
	return len(s.sweep(all, s.readNote())) < before
}

// localFS reports whether the file system is one that only this machine writes.
func localFS(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	const zfs, bcachefs = 0x2fc12fc1, 0xca451a4e
	switch uint32(st.Type) { // magic numbers have 32 bits
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, zfs, bcachefs:
		return true
	}
	return false
}
