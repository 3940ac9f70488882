// SPDX-License-Identifier: Apache-2.0

// Package attachments keeps one small JSON record per attachment: what an ADD is about to make (intent) and what it made (done).
//
// The record is written before the first kernel change, so that DEL and GC can clean what a killed plugin left behind without
// asking the runtime, the interface or the network namespace. Several plugins of one chain share the file of an attachment,
// each under its own name. The directory lives on a tmpfs (/run): records do not survive a reboot, and neither do pods.
//
// On a file system that is read-only nothing is recorded and nothing removed, without an error: an ADD works as upstream's, and a DEL
// looks for what it made. The loader refuses to serve new attachments there, since its garbage collection needs their records.
//
// Writes are atomic (temporary file, fsync, rename) and serialised by an flock. A record that cannot be read never stops a
// DEL or a GC: it is reported as Corrupt, with the attachment's identity taken from the file's name.
package attachments

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/file"
)

const (
	// DefaultDir is where the plugins keep their records.
	DefaultDir = "/run/sluice/attachments"
	// Version is the format written by this code. Readers take any version: unknown fields are ignored.
	Version = 1

	// StateIntent marks a section whose ADD has begun and not finished.
	StateIntent = "intent"
	// StateDone marks a section whose ADD has finished.
	StateDone = "done"
)

// ErrNotExist says that no record exists for the attachment.
var ErrNotExist = errors.New("no attachment record")

// ID names an attachment as the CNI specification does.
type ID struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// Owner returns the 64-bit identity under which the attachment owns entries in BPF maps: the first eight bytes, big endian, of
// SHA-256(network NUL containerID NUL ifname). None of the three can hold a NUL byte.
func (r ID) Owner() uint64 {
	h := r.sum()
	return binary.BigEndian.Uint64(h[:8])
}

// Pod names the container alone: the same for all attachments of a pod. It is
// the first 8 bytes, big endian, of SHA-256(containerID).
func (r ID) Pod() uint64 {
	sum := sha256.Sum256([]byte(r.ContainerID))
	return binary.BigEndian.Uint64(sum[:8])
}

func (r ID) sum() [sha256.Size]byte {
	return sha256.Sum256([]byte(r.Network + "\x00" + r.ContainerID + "\x00" + r.IfName))
}

// String returns the attachment as network/containerID/ifname, for logs and messages.
func (r ID) String() string { return r.Network + "/" + r.ContainerID + "/" + r.IfName }

// Section is what one plugin of the chain recorded.
type Section struct {
	State string          `json:"state"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// Record is everything known of one attachment.
type Record struct {
	Version int `json:"version"`
	ID
	NetNS   string             `json:"netns,omitempty"`
	Created time.Time          `json:"created"`
	Plugins map[string]Section `json:"plugins"`
	// Corrupt is set when the file could not be read as a record: ID comes from its name and Plugins is empty.
	Corrupt bool `json:"-"`
}

// Section decodes what plugin recorded into the value that into points to (nil: only ask). It reports whether there is a
// section; the error says that its data does not fit.
func (r *Record) Section(plugin string, into any) (bool, error) {
	if r == nil {
		return false, nil
	}
	s, ok := r.Plugins[plugin]
	if !ok || into == nil || len(s.Data) == 0 {
		return ok, nil
	}
	if err := cnierr.Decode("section "+plugin, s.Data, into); err != nil {
		return true, fmt.Errorf("record of %s: %w", r.ID, err)
	}
	return true, nil
}

// ReadSection returns what the record of ref holds of a plugin, and the path of the namespace then; nothing when there is no such
// record or section, or when it cannot be read.
func ReadSection[S any](d *Dir, ref ID, plugin string) (data S, found bool, netns string) {
	rec, _ := d.Load(ref) // none has no section, nor has a corrupt one
	var read S
	if found, err := rec.Section(plugin, &read); !found || err != nil {
		return data, false, ""
	}
	return read, true, rec.NetNS
}

// Claimed reports that the record of another attachment names the interface of ref in the namespace at netns, or that the
// records cannot be read. A DEL of an attachment without a record must leave the interface alone then.
func (d *Dir) Claimed(ref ID, netns string) bool {
	if netns == "" {
		return false
	}
	records, err := d.List("")
	if err != nil {
		return true
	}
	for _, rec := range records {
		if rec.ID != ref && rec.NetNS == netns && rec.IfName == ref.IfName {
			return true
		}
	}
	return false
}

// Dir is a directory of records. The zero value is unusable; use Open.
type Dir struct {
	path     string
	patience time.Duration           // how long to wait for the lock
	last     atomic.Pointer[written] // by this process, to any of the files
}

// Open returns the store at dir. Nothing is created before the first Begin.
func Open(dir string) *Dir { return &Dir{path: dir, patience: lockPatience} }

// Path returns the directory of the store.
func (d *Dir) Path() string { return d.path }

// Begin records that plugin is about to act for ref, before its first effect. A section of an earlier ADD is replaced, the
// other plugins' sections stay.
func (d *Dir) Begin(ref ID, netnsPath, plugin string, data any) error {
	return d.update(ref, plugin, data, StateIntent, func(rec *Record) {
		if netnsPath != "" {
			rec.NetNS = netnsPath
		}
	})
}

// Complete records that plugin has done its work for ref. It makes the section when Begin was not called.
func (d *Dir) Complete(ref ID, plugin string, data any) error {
	return d.update(ref, plugin, data, StateDone, func(*Record) {})
}

func (d *Dir) update(ref ID, plugin string, data any, state string, edit func(*Record)) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("record of %s, section %s: %w", ref, plugin, err)
	}
	unlock, err := d.lock(true)
	if errors.Is(err, unix.EROFS) {
		return nil // ADR 30: DEL looks for what the record would name
	}
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := d.current(ref)
	switch {
	case errors.Is(err, ErrNotExist):
		rec = &Record{ID: ref, Created: time.Now().UTC()}
	case err != nil:
		return err
	case rec.Corrupt: // nothing in it can be saved; what is written now is at least right
		rec.Created = time.Now().UTC()
	}
	rec.Version, rec.Corrupt = Version, false
	if rec.Plugins == nil {
		rec.Plugins = make(map[string]Section, 1)
	}
	edit(rec)
	rec.Plugins[plugin] = Section{State: state, Data: raw}
	return d.write(rec)
}

// Load returns the record of ref; ErrNotExist when there is none. A file that is not a record yields one marked Corrupt.
func (d *Dir) Load(ref ID) (*Record, error) {
	rec, err := d.read(fileName(ref))
	if err != nil {
		return nil, err
	}
	if rec.Corrupt {
		return &Record{ID: ref, Corrupt: true}, nil // a long name does not tell all of ref
	}
	return rec, nil
}

func (d *Dir) read(name string) (*Record, error) {
	raw, err := os.ReadFile(filepath.Join(d.path, name))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", name, ErrNotExist)
		}
		return nil, fmt.Errorf("read attachment record: %w", err)
	}
	rec := new(Record)
	// A file that names another attachment than its own name was not written by this code: nothing in it may be acted on.
	if err := json.Unmarshal(raw, rec); err != nil || rec.Version <= 0 || rec.ContainerID == "" || fileName(rec.ID) != name {
		ref, _ := refFromName(name)
		return &Record{ID: ref, Corrupt: true}, nil //nolint:nilerr // what cannot be read is an answer, not a failure
	}
	return rec, nil
}

// Remove takes plugin's section away; the file goes with its last section, and at once when it is corrupt. A missing record or
// section is success.
func (d *Dir) Remove(ref ID, plugin string) error {
	unlock, err := d.lock(false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		return nil // a record that is there stays until GC finds the directory writable
	}
	if err != nil {
		return err
	}
	defer unlock()
	d.sweep()
	rec, err := d.Load(ref)
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !rec.Corrupt {
		delete(rec.Plugins, plugin)
		if len(rec.Plugins) > 0 {
			return d.shrink(rec)
		}
	}
	if err := file.Remove(filepath.Join(d.path, fileName(ref))); err != nil {
		return fmt.Errorf("remove attachment record: %w", err)
	}
	return nil
}

// ListOf returns the records of a container, of all networks and interfaces, in no order. It reads the names of all files, which grow
// with the node, but no other container's record. Corrupt files, and a missing directory, are as for List.
func (d *Dir) ListOf(containerID string) ([]*Record, error) {
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	part := escape(containerID)
	if len(part) > maxPart {
		part = part[:maxPart]
	}
	var (
		recs []*Record
		errs []error
	)
	for _, name := range names {
		if !isRecordName(name) || !strings.Contains(name, sep+part) {
			continue
		}
		rec, err := d.read(name)
		switch {
		case errors.Is(err, ErrNotExist): // went between the listing and the reading
		case err != nil:
			errs = append(errs, err)
		case rec.ContainerID == containerID:
			recs = append(recs, rec)
		}
	}
	return recs, errors.Join(errs...)
}

// names returns the names of all files, in no order.
func (d *Dir) names() ([]string, error) {
	f, err := os.Open(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attachment records: %w", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list attachment records: %w", err)
	}
	return names, nil
}

// List returns the records of network, or all when network is empty, in the order of their file names. Corrupt files are in
// the list, with the ID that their name tells. A missing directory is an empty store. What a killed writer has left goes.
func (d *Dir) List(network string) ([]*Record, error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attachment records: %w", err)
	}
	var (
		recs []*Record
		errs []error
	)
	for _, e := range entries {
		if e.Name() == tempName {
			if unlock, err := d.lock(false); err == nil {
				d.sweep()
				unlock()
			}
		}
		if !isRecordName(e.Name()) {
			continue
		}
		rec, err := d.read(e.Name())
		switch {
		case errors.Is(err, ErrNotExist): // went between the listing and the reading
		case err != nil:
			errs = append(errs, err)
		case network == "" || rec.Network == network:
			recs = append(recs, rec)
		}
	}
	return recs, errors.Join(errs...)
}
