// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"encoding/json"
	"os"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
)

// nodeFile is the node's file of the pool. It is open only while it is read or changed, and never
// while the store is asked, because ADD and DEL need it. They change who uses which address, and
// what is kept for an owner. Everything else in it changes only under the lock of the pool's
// claims, so the rest of an operation can rely on state.
type nodeFile struct {
	dir, place, pool string

	state blocks.State // when it was last read or changed
}

// load reads the file without the uses of its attachments.
func (n *nodeFile) load(ctx context.Context) error {
	return n.with(ctx, stateOnly, func(*blocks.File) error { return nil })
}

// uses says whether a change of the file needs the uses of all attachments.
type uses bool

const (
	stateOnly uses = false // it changes neither claims nor uses
	withUses  uses = true
)

// update changes the file.
func (n *nodeFile) update(ctx context.Context, all uses, change func(s *blocks.State)) error {
	return n.with(ctx, all, func(f *blocks.File) error {
		change(&f.State)
		return f.Save()
	})
}

// with does work while the file is locked.
func (n *nodeFile) with(ctx context.Context, all uses, work func(f *blocks.File) error) error {
	var f *blocks.File
	var err error
	if all {
		f, err = blocks.Open(ctx, n.dir, n.place, n.pool)
	} else {
		f, err = blocks.OpenFor(ctx, n.dir, n.place, n.pool, "", "")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	err = work(f)
	n.state = f.State
	return err
}

// readJSON reads a file beside the node's that may be missing.
func readJSON(path string, into any) bool {
	text, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(text, into) == nil
}

// writeJSON removes a file that it cannot write: no content is better than an old one.
func writeJSON(path string, content any) {
	text, err := json.Marshal(content)
	if err == nil {
		err = file.Write(path, text, file.Options{})
	}
	if err != nil {
		_ = os.Remove(path)
	}
}
