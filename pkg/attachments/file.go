// SPDX-License-Identifier: Apache-2.0

package attachments

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
)

const (
	suffix   = ".json"
	lockName = ".lock"
	// tempName is the file that a record is written to before it takes its name: one for all, since a writer holds the lock.
	tempName = ".tmp"

	// sep stands between the parts of a file name. It is not among the bytes that escape leaves alone.
	sep = "="
	// maxName leaves room below the 255 bytes that file systems allow.
	maxName = 240
	// maxPart is how much of each part a name that is cut has.
	maxPart = 64

	// lockPatience is far more than all pods of a full node take one after the other, and less than any verb may last.
	lockPatience = 20 * time.Second
)

// fileName returns the name of ref's file: its three parts, readable, every byte that could mean something to a path or a
// shell written as %XX. A name that would be too long keeps the beginning of each part and gets a hash.
func fileName(ref ID) string {
	parts := []string{escape(ref.Network), escape(ref.ContainerID), escape(ref.IfName)}
	name := strings.Join(parts, sep) + suffix
	if len(name) <= maxName {
		return name
	}
	for i, p := range parts {
		if len(p) > maxPart {
			parts[i] = p[:maxPart]
		}
	}
	sum := ref.sum()
	return strings.Join(parts, sep) + sep + hex.EncodeToString(sum[:16]) + suffix
}

// refFromName undoes fileName where nothing was cut; false otherwise.
func refFromName(name string) (ID, bool) {
	parts := strings.Split(strings.TrimSuffix(name, suffix), sep)
	if len(parts) != 3 {
		return ID{}, false
	}
	for i := range parts {
		p, err := unescape(parts[i])
		if err != nil {
			return ID{}, false
		}
		parts[i] = p
	}
	return ID{Network: parts[0], ContainerID: parts[1], IfName: parts[2]}, true
}

func isRecordName(name string) bool {
	return strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, ".")
}

func plain(c byte, first bool) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		return true
	case c == '.':
		return !first // neither hidden files nor "." and ".."
	}
	return false
}

func escape(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; plain(c, i == 0) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+3 > len(s) {
			return "", errors.New("cut escape")
		}
		c, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", err
		}
		b.Write(c)
		i += 2
	}
	return b.String(), nil
}

// lock takes the store's flock and returns the function that gives it back. With create the directory is made first. The error is
// unix.EROFS where the store is on a file system that is read-only.
func (d *Dir) lock(create bool) (func(), error) {
	if create {
		if err := os.MkdirAll(d.path, 0o700); err != nil {
			return nil, fmt.Errorf("make the record directory: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(d.path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the record lock: %w", err)
	}
	// A process that holds the lock and does not go on (it was stopped, or frozen) must not hang every verb of every pod.
	ctx, cancel := context.WithTimeout(context.Background(), d.patience)
	defer cancel()
	if err := file.Lock(ctx, f); err != nil {
		return nil, fmt.Errorf("lock %s, which another process holds: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil
}

// write puts rec in place atomically: a reader sees the old record or the new one, also after a crash. The caller holds the lock
// and gives rec away.
func (d *Dir) write(rec *Record) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode attachment record: %w", err)
	}
	raw = append(raw, '\n')
	if err := file.Write(filepath.Join(d.path, fileName(rec.ID)), raw, file.Options{Temp: tempName, Sync: file.SyncContent}); err != nil {
		return fmt.Errorf("write attachment record: %w", err)
	}
	d.last.Store(&written{raw, rec})
	return nil
}

// shrink is write for a record that has lost a section. A file system that is full must not stop the DELs that make room in it:
// there the record is written over the old one, in one call and as long as that, which takes no room. The caller holds the lock.
func (d *Dir) shrink(rec *Record) error {
	err := d.write(rec)
	if !file.IsFull(err) {
		return err
	}
	if oerr := d.overwrite(rec); oerr != nil {
		return errors.Join(err, oerr)
	}
	return nil
}

func (d *Dir) overwrite(rec *Record) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode attachment record: %w", err)
	}
	if err := file.Overwrite(filepath.Join(d.path, fileName(rec.ID)), raw); err != nil {
		return fmt.Errorf("write over attachment record: %w", err)
	}
	return nil
}

// written is a record with the bytes of its file.
type written struct {
	raw []byte
	rec *Record
}

// current is Load for a caller that holds the lock. A process that completes what it began finds in the file what it wrote, and
// need not decode it. The record of then is taken from d, so no other caller can have it.
func (d *Dir) current(ref ID) (*Record, error) {
	last := d.last.Swap(nil)
	if last == nil || last.rec.ID != ref {
		return d.Load(ref)
	}
	raw, err := os.ReadFile(filepath.Join(d.path, fileName(ref)))
	if err != nil || !bytes.Equal(raw, last.raw) {
		return d.Load(ref)
	}
	return last.rec, nil
}

// sweep removes what a killed writer has left; the caller holds the lock, so no live one can own it. Failing to is no harm: the
// next writer takes the file over.
func (d *Dir) sweep() { _ = os.Remove(filepath.Join(d.path, tempName)) }
