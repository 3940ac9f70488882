// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// CheckOwners returns an ErrForeign for the first directory of the tree, or of the run directory, that another user can change. Below a
// directory that passes, only root makes anything: so the opens by path that follow see what was looked at here. Missing is fine.
func (p Paths) CheckOwners() error {
	ns := []string{p.Maps(), p.Progs(), p.Links(), p.Clsact(), p.RoutedDevs(), p.Podns(), p.EDT()}
	err := foreign(file.CheckParentOwner(p.BPFFS.Path()))
	for _, dir := range append([]string{filepath.Join(p.BPFFS.Path(), "sluice"), filepath.Dir(p.Dir), p.Dir}, ns...) {
		if err != nil {
			return err
		}
		err = foreign(file.CheckOwner(dir))
	}
	return errors.Join(err, foreign(file.CheckOwner(filepath.Dir(p.Lock))))
}

// foreign keeps what file.CheckOwner refuses. What cannot be looked at says so when it is used.
func foreign(err error) error {
	var f *file.OwnerError
	if errors.As(err, &f) {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return nil
}

// CheckLoaded is CheckOwners for callers that take away. A tree that another user made was never loaded by us: it must not keep a DEL
// from its end.
func (t *Tree) CheckLoaded() error {
	err := t.Paths.CheckOwners()
	var f *file.OwnerError
	if errors.As(err, &f) && !f.Owned {
		t.Log.Warn("these pins are ignored", log.Error(err))
		return fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	return err
}

// CheckOwners is that of the paths. While no bpffs is mounted it looks at the run directory alone.
func (t *Tree) CheckOwners() error {
	if ok, err := t.Paths.BPFFS.mounted(); err != nil || !ok {
		return foreign(file.CheckOwner(filepath.Dir(t.Paths.Lock)))
	}
	return t.Paths.CheckOwners()
}
