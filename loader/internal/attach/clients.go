// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// qdiscMade is the class of a filter of a device with clients whose qdisc was made with it. Such a device is nobody's attachment, and mostly goes
// without a word. So nothing is noted of it in a file that would stay.
const qdiscMade = 1

// HasClients reports whether a device has the programs for clients, of whatever build, or those of a pod or an uplink. It is what is found mostly, and
// takes no lock.
func (a *Attacher) HasClients(index int) (bool, error) {
	for _, h := range []hook.Hook{hook.ToClients(), hook.ToPod(), hook.ToUplink()} { // the last to come
		if pintree.Exists(a.tree.Paths.LinkPin(index, h)) {
			return true, nil
		}
	}
	c, err := a.Conn()
	if err != nil {
		return false, err
	}
	f, found, err := c.FilterAt(index, hook.ToClients())
	return found && f.program != "", err
}

// AttachClients puts the programs for clients on a device that has none of ours. One that has them keeps them, if they are those in force. So does
// one that has those of a pod or of an uplink, which do all that these do.
func (a *Attacher) AttachClients(index int) error {
	if pintree.Exists(a.tree.Paths.LinkPin(index, hook.ToPod())) || pintree.Exists(a.tree.Paths.LinkPin(index, hook.ToUplink())) {
		return nil
	}
	if a.tree.Config.Attach == nodeconf.AttachTCX {
		return a.clientLinks(index)
	}
	err := a.clientFilters(index)
	if err != nil && cannot(err) && a.tree.Config.Attach != nodeconf.AttachClsact {
		return a.clientLinks(index)
	}
	return err
}

func (a *Attacher) clientLinks(index int) error {
	_, err := a.putLinks(index, hook.OfClients())
	return err
}

func (a *Attacher) clientFilters(index int) error {
	c, err := a.Conn()
	if err != nil {
		return err
	}
	made, err := c.AddClsact(index)
	if err != nil {
		return err
	}
	if !made && OnlyIngress(c.h, index) {
		return c.noEgress(index)
	}
	for _, h := range hook.OfClients() {
		more, err := a.clientFilter(c, index, h, made)
		if err != nil && made {
			return errors.Join(err, c.DeleteClsact(index))
		}
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// clientFilter reports whether the device may have the next filter too.
func (a *Attacher) clientFilter(c *Conn, index int, h hook.Hook, fresh bool) (more bool, err error) {
	prog, err := a.program(h)
	if err != nil {
		return false, err
	}
	var class uint32
	if fresh {
		class = qdiscMade
	} else {
		f, found, err := c.FilterAt(index, h)
		switch {
		case err != nil:
			return false, err
		case found && f.program == "":
			return false, fmt.Errorf("device %d, %s, priority %d: %w (%s)", index, h.Direction(), h.Priority(), pintree.ErrConflict, f.kind)
		case found && !f.Is(h):
			return false, nil
		case found:
			if info, err := prog.Info(); err != nil || info.ID == f.id {
				return true, err
			}
			class = f.Class
		}
	}
	err = c.putFilter(index, h, prog, class)
	if errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("filter of %s on device %d: %w", h.Program, index, pintree.ErrNoDevice)
	}
	return err == nil, err
}

// displaceClients removes the programs for clients, where hooks are those of a pod or an uplink that have come in another way, and so not in
// their place.
func (a *Attacher) displaceClients(how string, index int, hooks []hook.Hook) error {
	if !slices.ContainsFunc(hooks, func(h hook.Hook) bool { return h.Rank == hook.FromClients().Rank }) {
		return nil
	}
	if how == hook.HowClsact {
		return a.dropLinks(index, hook.OfClients())
	}
	return a.Detach(index, hook.OfClients())
}

// madeForClients reports whether the qdisc was made with a filter for clients.
func (c *Conn) madeForClients(index int) bool {
	for _, h := range hook.OfClients() {
		if f, found, err := c.FilterAt(index, h); err == nil && found && f.Is(h) && f.Class == qdiscMade {
			return true
		}
	}
	return false
}
