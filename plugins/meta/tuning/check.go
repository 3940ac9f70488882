// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// check compares every setting that ADD made; what the configuration does not ask for may be as
// it likes (promisc, for one, may be on for other reasons).
func (p *plugin) check(_ context.Context, a *cniskel.Args) error {
	w, err := parse(a.StdinData, a.ContainerID, a.CmdArgs.Args, a.IfName)
	if err != nil {
		return err
	}
	if _, err := w.conf.Chained(); err != nil {
		return err
	}
	ns, err := openNS(a.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		return cnierr.Wrap(cnierr.CodeCheck, errors.Join(checkSysctls(w), checkLink(a.IfName, w)),
			"the settings of %s differ from the configuration", a.IfName)
	})
}

func checkSysctls(w *wanted) error {
	var errs []error
	for _, s := range w.sysctls {
		v, err := sysctl.Get(s.path)
		if errors.Is(err, fs.ErrPermission) {
			continue // write-only
		}
		if err == nil && !sysctl.Equal(v, s.value) {
			err = fmt.Errorf("sysctl %s is %q, not %q", s.given, v, s.value)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func checkLink(ifname string, w *wanted) error {
	if !w.link() {
		return nil
	}
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(ifname)
	if err != nil {
		return err
	}
	var errs []error
	differs := func(ok bool, what string, is, want any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v, not %v", what, is, want))
		}
	}
	if w.mac != nil {
		differs(bytes.Equal(link.MAC, w.mac), "mac", link.MAC, w.mac)
	}
	if w.promisc {
		differs(link.Promisc, "promisc", link.Promisc, true)
	}
	if w.mtu != 0 {
		differs(link.MTU == w.mtu, "mtu", link.MTU, w.mtu)
	}
	if w.allMulti != nil {
		differs(link.AllMulti == *w.allMulti, "allmulti", link.AllMulti, *w.allMulti)
	}
	if w.txQLen != nil {
		differs(link.TxQLen == *w.txQLen, "txQLen", link.TxQLen, *w.txQLen)
	}
	return errors.Join(errs...)
}

// status says whether an ADD would work: the configuration must be one that ADD
// accepts, the allowlist must allow it, and backups must find a place.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	w, err := parse(a.StdinData, "", "", "eth0")
	if err != nil {
		return err
	}
	err = p.allowed(ctx, w.sysctls)
	if err == nil && w.link() {
		err = writable(w.dataDir)
	}
	return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
}

// writable reports whether files can be made in dir, or dir itself in what
// exists of its parents.
func writable(dir string) error {
	fi, err := os.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
		fi, err = os.Stat(dir)
	}
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%s is not a directory", dir)
	}
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	return cnierr.Wrap(cnierr.CodeIO, err, "write to dataDir %q", dir)
}
