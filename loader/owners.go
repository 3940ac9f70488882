// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/dirowner"
	"github.com/sluice-cni/sluice/pkg/log"
)

// ErrForeign says that another user made a directory of the pins or of the run directory, or can write to it. What is in it may not be
// trusted, and nothing may be put there. The text names the directory and says what to do.
var ErrForeign = errors.New("not root's alone")

// checkOwners returns an ErrForeign for the first directory of the tree, or of the run directory, that another user can change. Below a
// directory that passes, only root makes anything: so the opens by path that follow see what was looked at here. Missing is fine.
func (p paths) checkOwners() error {
	ns := []string{p.maps(), p.progs(), p.links(), p.clsact(), p.routedDevs(), p.podns(), p.edt()}
	err := foreign(dirowner.CheckParent(p.bpffs.path()))
	for _, dir := range append([]string{filepath.Join(p.bpffs.path(), "sluice"), filepath.Dir(p.dir), p.dir}, ns...) {
		if err != nil {
			return err
		}
		err = foreign(dirowner.Check(dir))
	}
	return errors.Join(err, foreign(dirowner.Check(filepath.Dir(p.lock))))
}

// foreign keeps what dirowner refuses. What cannot be looked at says so when it is used.
func foreign(err error) error {
	var f *dirowner.ForeignError
	if errors.As(err, &f) {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return nil
}

// checkLoaded is checkOwners for callers that take away. A tree that another user made was never loaded by us: it must not keep a DEL
// from its end.
func (d *Datapath) checkLoaded() error {
	err := d.paths.checkOwners()
	var f *dirowner.ForeignError
	if errors.As(err, &f) && !f.Owned {
		d.log.Warn("these pins are ignored", log.Error(err))
		return fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	return err
}

// CheckOwners returns an ErrForeign if another user can change the pins or the run directory, for the operator's tool.
func CheckOwners(o Options) error {
	d, err := newDatapath(o)
	if err != nil {
		return err
	}
	defer d.Close()
	if ok, err := d.paths.bpffs.mounted(); err != nil || !ok {
		return foreign(dirowner.Check(filepath.Dir(d.paths.lock)))
	}
	return d.paths.checkOwners()
}
