// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Attacher attaches and detaches under the writers' lock, and looks at the node with the same socket. It opens that and the
// programs when they are first needed.
type Attacher struct {
	tree     *pintree.Tree
	dir      string // of the programs
	programs map[string]*bpfsys.Program
	tc       *Conn
}

// NewAttacher works with the programs in dir, the committed ones when it is empty.
func NewAttacher(t *pintree.Tree, dir string) *Attacher {
	return &Attacher{tree: t, dir: dir, programs: make(map[string]*bpfsys.Program, 4)}
}

// Close closes the programs and the socket.
func (a *Attacher) Close() {
	for _, p := range a.programs {
		_ = p.Close()
	}
	if a.tc != nil {
		a.tc.Close()
	}
}

func (a *Attacher) program(h hook.Hook) (*bpfsys.Program, error) {
	if p, ok := a.programs[h.Program]; ok {
		return p, nil
	}
	if a.dir == "" {
		dir, err := a.tree.CommittedDir()
		if err != nil {
			return nil, err
		}
		a.dir = dir
	}
	p, err := programs.Program(a.tree, a.dir, h)
	if err == nil {
		a.programs[h.Program] = p
	}
	return p, err
}

// Conn is the attacher's connection into the calling thread's namespace.
func (a *Attacher) Conn() (*Conn, error) {
	if a.tc == nil {
		c, err := openTC()
		if err != nil {
			return nil, err
		}
		a.tc = c
	}
	return a.tc, nil
}

// Netlink is the attacher's socket, to look at the node with.
func (a *Attacher) Netlink() (*rtnl.Handle, error) {
	c, err := a.Conn()
	if err != nil {
		return nil, err
	}
	return c.h, nil
}

// Gone reports whether the device index is certainly not there.
func (a *Attacher) Gone(index int) bool {
	c, err := a.Conn()
	if err == nil {
		_, err = c.h.LinkByIndex(index)
	}
	return errors.Is(err, rtnl.ErrNotFound)
}

// order returns the ways to attach to try, the preferred first. On pod devices that is clsact: a tcx attachment makes the
// kernel wait for an RCU grace period, at every attachment and again when the device goes (kernel/bpf/tcx.c, tcx_entry_sync),
// 7-20 ms each; a filter costs 0.1 ms, and the host veth of a pod is ours alone. Uplinks are attached once and shared
// with others, which is what tcx links are good at.
func (a *Attacher) order(pod bool) []string {
	switch a.tree.Config.Attach {
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

// Attach hangs the programs of hooks on the device index, or puts them in place of older ones. What it did before an error it
// takes back.
func (a *Attacher) Attach(index int, hooks []hook.Hook, pod bool) error {
	netkit, others := hook.Netkit(hooks)
	if len(netkit) == 0 {
		return a.attachTC(index, others, pod)
	}
	made, err := a.putLinks(index, netkit)
	if err != nil && !cannot(err) {
		return err
	}
	if err != nil { // without netkit's own way the host veth is like any other device
		a.tree.Log.Info("attach: trying the other way", log.Int("ifindex", index), log.String("not", hook.HowNetkit), log.Error(err))
		for i := range netkit {
			netkit[i].Netkit = false
		}
		return a.attachTC(index, slices.Concat(netkit, others), pod)
	}
	if err := errors.Join(a.detachOther(hook.HowNetkit, index, netkit), a.displaceClients(hook.HowNetkit, index, netkit)); err != nil {
		return err
	}
	if len(others) == 0 {
		return nil
	}
	err = a.attachTC(index, others, pod)
	if err == nil {
		return nil
	}
	return errors.Join(err, a.dropLinks(index, made))
}

// InForce are hooks as they are on a device that has programs of ours already. One whose link is of netkit stays there.
func (a *Attacher) InForce(index int, hooks []hook.Hook) []hook.Hook {
	for _, h := range hooks {
		if !pintree.Exists(a.tree.Paths.LinkPin(index, h)) { // mostly: it costs less than a look at the filters
			continue
		}
		if at, err := a.At(index, h); err == nil && at.How == hook.HowNetkit {
			return hook.OnNetkit(hooks)
		}
	}
	return hooks
}

func (a *Attacher) attachTC(index int, hooks []hook.Hook, pod bool) error {
	order := a.order(pod)
	var errs []error
	for _, how := range order {
		err := a.attachBy(how, index, hooks)
		if err == nil {
			return errors.Join(a.detachOther(how, index, hooks), a.displaceClients(how, index, hooks))
		}
		errs = append(errs, err)
		if errors.Is(err, pintree.ErrNoDevice) || !cannot(err) {
			break
		}
		a.tree.Log.Info("attach: trying the other way", log.Int("ifindex", index), log.String("not", how), log.Error(err))
	}
	return errors.Join(errs...)
}

// Ensure attaches to a pod's device. One that is not fresh is only looked at, if it has what it should have.
func (a *Attacher) Ensure(index int, hooks []hook.Hook, fresh bool) error {
	if !fresh {
		if ok, err := a.Healthy(index, hooks); ok || err != nil {
			return err
		}
	}
	return a.Attach(index, hooks, true)
}

// cannot says whether err means that this way is not open on this kernel or device, so that the other may be.
func cannot(err error) bool {
	return errors.Is(err, bpfsys.ErrNotSupported) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, pintree.ErrConflict)
}

func (a *Attacher) attachBy(how string, index int, hooks []hook.Hook) error {
	if how == hook.HowTCX {
		_, err := a.putLinks(index, hooks)
		return err
	}
	return a.attachClsact(index, hooks)
}

// putLinks makes links that live by their pins, update first: the program of a link that is there changes in place. It returns those
// that are new.
func (a *Attacher) putLinks(index int, hooks []hook.Hook) (made []hook.Hook, err error) {
	for _, h := range hooks { // what was there before stays, also on an error
		prog, err := a.program(h)
		updated := false
		if err == nil {
			updated, err = putLink(a.tree, index, h, prog)
		}
		if err != nil {
			return nil, errors.Join(err, a.dropLinks(index, made))
		}
		if !updated {
			made = append(made, h)
		}
	}
	return made, nil
}

func (a *Attacher) dropLinks(index int, hooks []hook.Hook) error {
	var errs []error
	for _, h := range hooks {
		errs = append(errs, DropLink(a.tree, index, h))
	}
	return errors.Join(errs...)
}

func (a *Attacher) attachClsact(index int, hooks []hook.Hook) error {
	c, err := a.Conn()
	if err != nil {
		return err
	}
	made, err := c.AddClsact(index)
	if err != nil {
		return err
	}
	if made {
		if err := os.Mkdir(a.tree.Paths.ClsactMark(index), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return errors.Join(err, c.DeleteClsact(index))
		}
	}
	if !made && slices.ContainsFunc(hooks, func(h hook.Hook) bool { return h.Egress }) && OnlyIngress(c.h, index) {
		return c.noEgress(index) // before a filter is there: even one that goes again changes what the kernel tells of the others
	}
	var put []hook.Hook // what was there before stays, also on an error
	for i, h := range hooks {
		replaced, err := a.PutFilter(c, index, h, made)
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

// PutFilter reports whether there was one, which it has replaced.
func (a *Attacher) PutFilter(c *Conn, index int, h hook.Hook, fresh bool) (replaced bool, err error) {
	prog, err := a.program(h)
	if err != nil {
		return false, err
	}
	if !fresh {
		f, found, err := c.FilterAt(index, h)
		if err != nil {
			return false, err
		}
		if found && !f.yields(h) {
			if f.program != "" { // our own of the other direction: an "ingress" qdisc shows one list for both
				return false, c.noEgress(index)
			}
			return false, fmt.Errorf("device %d, %s, priority %d: %w (%s %s)", index, h.Direction(), h.Priority(), pintree.ErrConflict, f.kind, f.program)
		}
		replaced = found
		if found && f.Class == qdiscMade && f.program != h.Program { // from now on the mark says who made the qdisc
			if err := os.Mkdir(a.tree.Paths.ClsactMark(index), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
				return false, err
			}
		}
	}
	err = c.putFilter(index, h, prog, 0)
	if errors.Is(err, unix.ENODEV) { // it went after we had looked at its qdisc
		return false, fmt.Errorf("filter of %s on device %d: %w", h.Program, index, pintree.ErrNoDevice)
	}
	if !fresh && errors.Is(err, unix.EINVAL) {
		return false, fmt.Errorf("%w: %w", c.noEgress(index), err)
	}
	return replaced, err
}

// detachOther removes what the other way had attached, after this way has taken over.
func (a *Attacher) detachOther(how string, index int, hooks []hook.Hook) error {
	if how != hook.HowClsact {
		if !pintree.Exists(a.tree.Paths.ClsactMark(index)) {
			return nil
		}
		return a.detachClsact(index, hooks)
	}
	return a.dropLinks(index, hooks)
}

// Detach removes the programs of hooks from the device, however they hang there. A device that has gone is success.
func (a *Attacher) Detach(index int, hooks []hook.Hook) error {
	var errs []error
	tcx := 0
	for _, h := range hooks {
		if pintree.Exists(a.tree.Paths.LinkPin(index, h)) {
			tcx++
		}
		errs = append(errs, DropLink(a.tree, index, h))
	}
	if tcx < len(hooks) || pintree.Exists(a.tree.Paths.ClsactMark(index)) {
		errs = append(errs, a.detachClsact(index, hooks))
	}
	return errors.Join(errs...)
}

// detachClsact removes our filters, and the qdisc too if we made it and no other program uses it.
func (a *Attacher) detachClsact(index int, hooks []hook.Hook) error {
	c, err := a.Conn()
	if err != nil {
		return err
	}
	mark := a.tree.Paths.ClsactMark(index)
	marked := pintree.Exists(mark)
	made := marked || slices.Contains(hooks, hook.FromClients()) && c.madeForClients(index)
	if made && c.only(index, hooks) {
		return errors.Join(c.DeleteClsact(index), pintree.RemovePin(mark))
	}
	err = c.deleteFilters(index, hooks)
	if marked && !c.hasOurs(index) { // from now on it is the others'
		err = errors.Join(err, pintree.RemovePin(mark))
	}
	return err
}

// Attached is what hangs at one place.
type Attached struct {
	How string // empty: nothing of ours
	ID  uint32 // of the program
}

// At looks at one place on a device.
func (a *Attacher) At(index int, h hook.Hook) (Attached, error) {
	pin := a.tree.Paths.LinkPin(index, h)
	if pintree.Exists(pin) {
		l, err := bpfsys.OpenLink(pin)
		if err != nil {
			return Attached{}, err
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			return Attached{}, err
		}
		if info.IsTCX() && int(info.Ifindex) == index {
			return Attached{How: hook.HowTCX, ID: info.Program}, nil
		}
		if info.IsNetkit() && info.Ifindex != 0 { // of the pod's end
			return Attached{How: hook.HowNetkit, ID: info.Program}, nil
		}
	}
	c, err := a.Conn()
	if err != nil {
		return Attached{}, err
	}
	f, found, err := c.FilterAt(index, h)
	if err != nil || !found || !f.Is(h) {
		return Attached{}, err
	}
	return Attached{How: hook.HowClsact, ID: f.id}, nil
}

// Healthy reports whether every hook has a program of ours, those of netkit by its own way.
func (a *Attacher) Healthy(index int, hooks []hook.Hook) (bool, error) {
	for _, h := range hooks {
		at, err := a.At(index, h)
		if err != nil || at.How == "" || h.Netkit && at.How != hook.HowNetkit {
			return false, err
		}
	}
	return true, nil
}

// CheckPins looks for the programs and maps: without them nothing is amiss until the next ADD. The programs in force may be of another
// build until then, since binaries are swapped first. What that one did not have is not missing.
func CheckPins(t *pintree.Tree) error {
	id, ok := t.Paths.Committed()
	if ok && t.Paths.Loaded(id) {
		return nil
	}
	k, err := programs.ConstantsOf(t)
	if err != nil {
		return err
	}
	if !ok || id == k.Build() || !t.Paths.LoadedByAnother(id) {
		return pintree.Differs("pins are missing below %s", t.Paths.Dir)
	}
	return nil
}

// CheckHooks returns an ErrDiffers for each of hooks that has no program of ours. name is the device's, for messages.
func CheckHooks(a *Attacher, index int, name string, hooks []hook.Hook) error {
	var errs []error
	for _, h := range hooks {
		at, err := a.At(index, h)
		if err == nil && at.How == "" {
			err = pintree.Differs("%s is not attached to the %s of device %d %s", h.Program, h.Direction(), index, name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
