// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// waitlistName is for messages.
const waitlistName = "ports taken over"

// waitlist has the hostPorts that another owner has taken over, in a file of the run directory. It is empty on almost every node: a map
// of its own would waste memory. Its readers and writers hold the writers' lock.
type waitlist struct {
	path string
	all  []hostport.Entry // as in the file
}

// waitlist reads the list. Without a file it is empty. So is one that does not parse: it must not stop pods.
func (d *Datapath) waitlist() (waitlist, error) {
	l := waitlist{path: d.tree.Paths.Waiting}
	raw, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("%s: %w", waitlistName, err)
	}
	if err := json.Unmarshal(raw, &l.all); err != nil {
		d.tree.Log.Warn(waitlistName+" do not come back", log.Error(fmt.Errorf("%s: %w", l.path, err)))
		l.all = nil
	}
	return l, nil
}

// set replaces the list. A full file system fails what makes it longer, but not what makes it shorter, which makes room: that is
// written over the old content. A read-only one keeps the old content then: readers ask whether a waiter is alive.
func (l *waitlist) set(now []hostport.Entry) error {
	if slices.EqualFunc(l.all, now, hostport.Entry.Equal) {
		return nil
	}
	if err := l.write(now); err != nil && (!errors.Is(err, unix.EROFS) || len(now) > len(l.all)) {
		return fmt.Errorf("%s: %w", waitlistName, err)
	}
	l.all = now
	return nil
}

func (l *waitlist) write(now []hostport.Entry) error {
	if len(now) == 0 {
		return file.Remove(l.path)
	}
	raw, err := json.Marshal(now)
	if err != nil {
		return err
	}
	err = pintree.WriteFile(l.path, raw)
	if len(now) < len(l.all) && file.IsFull(err) {
		return file.Overwrite(l.path, raw)
	}
	return err
}

// dropStaleWaitlist deletes the list if the map of hostPorts is empty: the map is new then, and the waiters are of the old one.
func (d *Datapath) dropStaleWaitlist() error {
	ports, err := d.tree.HostPortMap()
	if err != nil {
		return err
	}
	n, err := ports.Len()
	if err != nil || n > 0 {
		return err
	}
	return file.Remove(d.tree.Paths.Waiting)
}
