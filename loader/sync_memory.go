// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/uplinks"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// readMemory returns what the last look has left; nil if there is nothing that can be used. In a run directory that is read-only it is not
// what the last look has left.
func (d *Datapath) readMemory() *uplinks.Memory {
	if d.tree.CheckWritable() != nil {
		return nil
	}
	raw, err := os.ReadFile(d.tree.Paths.Look)
	if err != nil {
		return nil
	}
	m, err := uplinks.ParseMemory(string(raw))
	if err != nil {
		return nil
	}
	return m
}

// writeMemory keeps m for the next look. The maps are written before: after a crash in between, the next look begins where the last
// one did. Where there is no room the file goes, and the next look is a full one: an old file may lack devices of the node.
func (d *Datapath) writeMemory(m *uplinks.Memory) error {
	if m.TooLarge() {
		return d.dropMemory()
	}
	err := pintree.WriteFile(d.tree.Paths.Look, []byte(m.String()))
	if err == nil {
		return nil
	}
	d.tree.Log.Warn("the next verb reads all devices of the node again", log.Error(fmt.Errorf("%s: %w", d.tree.Paths.Look, err)))
	return d.dropMemory()
}

// dropMemory makes the next look a full one.
func (d *Datapath) dropMemory() error {
	if err := file.Remove(d.tree.Paths.Look); !errors.Is(err, unix.EROFS) {
		return err
	}
	return nil // readMemory does not read it there
}
