// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// attacher attaches and detaches under the writers' lock, and looks at the node with the same socket. It opens that and the
// programs when they are first needed.
type attacher struct {
	d        *Datapath
	dir      string // of the programs
	programs map[string]*bpfsys.Program
	tc       *tcConn
}

// attacher works with the programs in dir, the committed ones when it is empty.
func (d *Datapath) attacher(dir string) *attacher {
	return &attacher{d: d, dir: dir, programs: make(map[string]*bpfsys.Program, 4)}
}

func (a *attacher) Close() {
	for _, p := range a.programs {
		_ = p.Close()
	}
	if a.tc != nil {
		a.tc.Close()
	}
}

func (a *attacher) program(h hook.Hook) (*bpfsys.Program, error) {
	if p, ok := a.programs[h.Program]; ok {
		return p, nil
	}
	if a.dir == "" {
		dir, err := a.d.tree.CommittedDir()
		if err != nil {
			return nil, err
		}
		a.dir = dir
	}
	p, err := programs.New(a.d.tree).Program(a.dir, h)
	if err == nil {
		a.programs[h.Program] = p
	}
	return p, err
}

func (a *attacher) conn() (*tcConn, error) {
	if a.tc == nil {
		c, err := openTC()
		if err != nil {
			return nil, err
		}
		a.tc = c
	}
	return a.tc, nil
}

// gone reports whether the device index is certainly not there.
func (a *attacher) gone(index int) bool {
	c, err := a.conn()
	if err == nil {
		_, err = c.h.LinkByIndex(index)
	}
	return errors.Is(err, rtnl.ErrNotFound)
}

// order returns the ways to attach to try, the preferred first. On pod devices that is clsact: a tcx attachment makes the
// kernel wait for an RCU grace period, at every attachment and again when the device goes (kernel/bpf/tcx.c, tcx_entry_sync),
// 7-20 ms each; a filter costs 0.1 ms, and the host end of a pod's device is ours alone. Uplinks are attached once and shared
// with others, which is what tcx links are good at.
func (a *attacher) order(pod bool) []string {
	switch a.d.tree.Config.Attach {
	case nodeconf.AttachTCX:
		return []string{hook.HowTCX}
	case nodeconf.AttachClsact:
		return []string{hook.HowClsact}
	}
	if pod {
		return []string{hook.HowClsact, hook.HowTCX}
	}
	return []string{hook.HowTCX, hook.HowClsact}
}

// attach hangs the programs of hooks on the device index, or puts them in place of older ones. What it did before an error it
// takes back.
func (a *attacher) attach(index int, hooks []hook.Hook, pod bool) error {
	order := a.order(pod)
	var errs []error
	for _, how := range order {
		err := a.attachBy(how, index, hooks)
		if err == nil {
			return a.detachOther(how, index, hooks)
		}
		errs = append(errs, err)
		if errors.Is(err, ErrNoDevice) || !cannot(err) {
			break
		}
		a.d.tree.Log.Info("attach: trying the other way", log.Int("ifindex", index), log.String("not", how), log.Error(err))
	}
	return errors.Join(errs...)
}

// ensure attaches to a pod's device. One that is not fresh is only looked at, if it has what it should have.
func (a *attacher) ensure(index int, hooks []hook.Hook, fresh bool) error {
	if !fresh {
		if ok, err := a.healthy(index, hooks); ok || err != nil {
			return err
		}
	}
	return a.attach(index, hooks, true)
}

// cannot says whether err means that this way is not open on this kernel or device, so that the other may be.
func cannot(err error) bool {
	return errors.Is(err, bpfsys.ErrNotSupported) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, ErrConflict)
}

func (a *attacher) attachBy(how string, index int, hooks []hook.Hook) error {
	if how == hook.HowTCX {
		return a.attachTCX(index, hooks)
	}
	return a.attachClsact(index, hooks)
}

// attachTCX makes links that live by their pins, update first: the program of a link that is there changes in place.
func (a *attacher) attachTCX(index int, hooks []hook.Hook) error {
	var made []hook.Hook // what was there before stays, also on an error
	for _, h := range hooks {
		prog, err := a.program(h)
		updated := false
		if err == nil {
			updated, err = a.d.putLink(index, h, prog)
		}
		if err != nil {
			for _, done := range made {
				err = errors.Join(err, a.d.dropLink(index, done))
			}
			return err
		}
		if !updated {
			made = append(made, h)
		}
	}
	return nil
}

// putLink reports whether there was a link, whose program it has changed.
func (d *Datapath) putLink(index int, h hook.Hook, prog *bpfsys.Program) (updated bool, err error) {
	pin := d.tree.Paths.LinkPin(index, h)
	switch updated, err := updateLink(pin, prog); {
	case err != nil:
		return false, fmt.Errorf("tcx link %s: %w", filepath.Base(pin), err)
	case updated:
		return true, nil
	}
	l, err := attachLink(index, h, prog)
	if errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("tcx link on device %d: %w", index, ErrNoDevice)
	}
	if err != nil {
		return false, fmt.Errorf("tcx link of %s on device %d: %w", h.Program, index, err)
	}
	// Closing detaches unless the pin holds the link: a crash here leaves nothing.
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return false, fmt.Errorf("pin link %s: %w", filepath.Base(pin), err)
	}
	return false, nil
}

// attachLink makes a link at the end of the chain. A link whose pin was removed by hand goes in the kernel's own time, and until
// then the program counts as being there: that is waited for.
func attachLink(index int, h hook.Hook, prog *bpfsys.Program) (*bpfsys.Link, error) {
	const patience, step = time.Second, 5 * time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(step) {
		l, err := bpfsys.AttachTCX(prog, index, h.TCX())
		if !errors.Is(err, unix.EEXIST) || time.Now().After(end) {
			return l, err
		}
	}
}

// updateLink puts prog into the pinned link. False: there is no link, or its device has gone, and the pin with it.
func updateLink(pin string, prog *bpfsys.Program) (bool, error) {
	if !pintree.Exists(pin) {
		return false, nil
	}
	l, err := bpfsys.OpenLink(pin)
	if err != nil {
		return false, err
	}
	defer l.Close()
	err = l.Update(prog)
	if errors.Is(err, unix.ENOLINK) { // the device went, or somebody detached it by force
		return false, pintree.RemoveIfThere(pin)
	}
	return err == nil, err
}

// dropLink detaches and removes the pin; missing is success. Removing the pin alone would do, but later: the kernel would refuse
// to attach the same program again for some milliseconds.
func (d *Datapath) dropLink(index int, h hook.Hook) error {
	return dropPin(d.tree.Paths.LinkPin(index, h))
}

func dropPin(pin string) error {
	if !pintree.Exists(pin) {
		return nil
	}
	if l, err := bpfsys.OpenLink(pin); err == nil {
		err = l.Detach()
		_ = l.Close()
		if err != nil && !errors.Is(err, unix.ENOLINK) {
			return fmt.Errorf("detach %s: %w", filepath.Base(pin), err)
		}
	}
	return pintree.RemoveIfThere(pin)
}

func (a *attacher) attachClsact(index int, hooks []hook.Hook) error {
	c, err := a.conn()
	if err != nil {
		return err
	}
	made, err := c.addClsact(index)
	if err != nil {
		return err
	}
	if made {
		if err := os.Mkdir(a.d.tree.Paths.ClsactMark(index), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return errors.Join(err, c.deleteClsact(index))
		}
	}
	var put []hook.Hook // what was there before stays, also on an error
	for i, h := range hooks {
		replaced, err := a.putFilter(c, index, h, made)
		if err != nil && made {
			return errors.Join(err, a.detachClsact(index, hooks[:i]))
		}
		if err != nil {
			return errors.Join(err, c.deleteFilters(index, put))
		}
		if !replaced {
			put = append(put, h)
		}
	}
	return nil
}

// putFilter reports whether there was one, which it has replaced.
func (a *attacher) putFilter(c *tcConn, index int, h hook.Hook, fresh bool) (replaced bool, err error) {
	prog, err := a.program(h)
	if err != nil {
		return false, err
	}
	if !fresh {
		f, found, err := c.filterAt(index, h)
		if err != nil {
			return false, err
		}
		if found && !f.yields(h) {
			if f.program != "" { // our own of the other direction: an "ingress" qdisc shows one list for both
				return false, c.noEgress(index)
			}
			return false, fmt.Errorf("device %d, %s, priority %d: %w (%s %s)", index, h.Direction(), h.Priority(), ErrConflict, f.kind, f.program)
		}
		replaced = found
	}
	err = c.putFilter(index, h, prog, 0)
	if errors.Is(err, unix.ENODEV) { // it went after we had looked at its qdisc
		return false, fmt.Errorf("filter of %s on device %d: %w", h.Program, index, ErrNoDevice)
	}
	if !fresh && errors.Is(err, unix.EINVAL) {
		return false, fmt.Errorf("%w: %w", c.noEgress(index), err)
	}
	return replaced, err
}

// detachOther removes what the other way had attached, after this way has taken over.
func (a *attacher) detachOther(how string, index int, hooks []hook.Hook) error {
	if how == hook.HowTCX {
		if !pintree.Exists(a.d.tree.Paths.ClsactMark(index)) {
			return nil
		}
		return a.detachClsact(index, hooks)
	}
	var errs []error
	for _, h := range hooks {
		errs = append(errs, a.d.dropLink(index, h))
	}
	return errors.Join(errs...)
}

// detach removes the programs of hooks from the device, however they hang there. A device that has gone is success.
func (a *attacher) detach(index int, hooks []hook.Hook) error {
	var errs []error
	tcx := 0
	for _, h := range hooks {
		if pintree.Exists(a.d.tree.Paths.LinkPin(index, h)) {
			tcx++
		}
		errs = append(errs, a.d.dropLink(index, h))
	}
	if tcx < len(hooks) || pintree.Exists(a.d.tree.Paths.ClsactMark(index)) {
		errs = append(errs, a.detachClsact(index, hooks))
	}
	return errors.Join(errs...)
}

// detachClsact removes our filters, and the qdisc too if we made it and nobody else uses it.
func (a *attacher) detachClsact(index int, hooks []hook.Hook) error {
	c, err := a.conn()
	if err != nil {
		return err
	}
	mark := a.d.tree.Paths.ClsactMark(index)
	made := pintree.Exists(mark)
	if made && c.only(index, hooks) {
		return errors.Join(c.deleteClsact(index), pintree.RemoveIfThere(mark))
	}
	err = c.deleteFilters(index, hooks)
	if made { // from now on it is the others'
		err = errors.Join(err, pintree.RemoveIfThere(mark))
	}
	return err
}

// attached is what hangs at one place.
type attached struct {
	how string // empty: nothing of ours
	id  uint32 // of the program
}

// at looks at one place on a device.
func (a *attacher) at(index int, h hook.Hook) (attached, error) {
	pin := a.d.tree.Paths.LinkPin(index, h)
	if pintree.Exists(pin) {
		l, err := bpfsys.OpenLink(pin)
		if err != nil {
			return attached{}, err
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			return attached{}, err
		}
		if info.IsTCX() && int(info.Ifindex) == index {
			return attached{how: hook.HowTCX, id: info.Program}, nil
		}
	}
	c, err := a.conn()
	if err != nil {
		return attached{}, err
	}
	f, found, err := c.filterAt(index, h)
	if err != nil || !found || !f.is(h) {
		return attached{}, err
	}
	return attached{how: hook.HowClsact, id: f.id}, nil
}

// healthy reports whether every hook has a program of ours.
func (a *attacher) healthy(index int, hooks []hook.Hook) (bool, error) {
	for _, h := range hooks {
		at, err := a.at(index, h)
		if err != nil || at.how == "" {
			return false, err
		}
	}
	return true, nil
}
