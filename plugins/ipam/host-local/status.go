// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/ipalloc"
	"github.com/sluice-cni/sluice/pkg/log"
)

// status says whether the plugin can serve ADDs: the configuration is valid and
// the directory can be written. A pool without a free address is a warning, not an
// error: a runtime takes the whole node for not ready on an error (ADR 31). It
// reserves nothing and makes no directory.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a)
	if err != nil && !errors.Is(err, errNoRange) {
		return err
	}
	if c.resolvConf != "" {
		if _, err := readResolvConf(c.resolvConf); err != nil {
			return cnierr.Wrap(cnierr.CodeUnavailable, err, "the resolver configuration is not readable")
		}
	}
	dir := filepath.Join(c.dataDir, c.network)
	if err := writable(dir); err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "reservations cannot be written to %s", dir)
	}
	s, err := openStore(ctx, c, p.node(), a.Log, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a new network: everything is free
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "the reservations in %s are not usable", dir)
	}
	defer s.close()
	for _, set := range c.sets {
		free, err := s.hasFree(set)
		if err == nil && !free && s.reclaim() {
			free, err = s.hasFree(set)
		}
		if err != nil {
			return cnierr.Wrap(cnierr.CodeUnavailable, err, "the reservations in %s are not readable", dir)
		}
		if !free {
			a.Log.Warn("no free address: ADD fails until a pod goes", log.String(log.KeyNetwork, c.network), log.Stringer("ranges", set))
		}
	}
	return nil
}

func (s *store) hasFree(set ipalloc.Set) (bool, error) {
	taken, err := s.names()
	if err != nil {
		return false, err
	}
	for addr := range set.After(s.last(0)) {
		if _, ok := taken[addr]; !ok {
			return true, nil
		}
	}
	return false, nil
}

// writable reports whether files can be made in dir, or dir itself in what
// exists of its parents.
func writable(dir string) error {
	for {
		fi, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if parent := filepath.Dir(dir); parent != dir {
				dir = parent
				continue
			}
			return err
		case err != nil:
			return err
		case !fi.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		}
		return unix.Access(dir, unix.W_OK|unix.X_OK)
	}
}
