// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// XdpPinned returns the devices that have a pinned link of ours.
func XdpPinned(t *pintree.Tree) ([]int, error) {
	pins, err := pintree.Names(t.Paths.Links())
	var out []int
	for _, name := range pins {
		if index, h, ok := pintree.ParseLinkName(name); ok && h == hook.XDP() {
			out = append(out, index)
		}
	}
	return out, err
}

// ReplaceXDP puts the attacher's program into every link there is.
func (a *Attacher) ReplaceXDP() error {
	pinned, err := XdpPinned(a.tree)
	errs := []error{err}
	for _, index := range pinned {
		errs = append(errs, a.PutXDP(index, true))
	}
	return errors.Join(errs...)
}

// PutXDP makes the device have a link to our program, by its driver if that can. A link that is there is only looked at, unless
// its program is to be replaced.
func (a *Attacher) PutXDP(index int, replace bool) error {
	pin := a.tree.Paths.LinkPin(index, hook.XDP())
	if lost, err := Defunct(pin); err == nil && lost {
		if err := file.Remove(pin); err != nil {
			return err
		}
	}
	if pintree.Exists(pin) && !replace {
		return nil
	}
	prog, err := a.program(hook.XDP())
	if err != nil {
		return err
	}
	if updated, err := updateLink(pin, prog); updated || err != nil {
		return err
	}
	l, err := attachXDP(index, prog)
	switch {
	case errors.Is(err, unix.EINVAL) && a.Gone(index): // the kernel says no more than that
		return nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("device %d: %w: it has an XDP program of somebody else, which stays", index, pintree.ErrConflict)
	case err != nil:
		return fmt.Errorf("XDP link on device %d: %w", index, err)
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin XDP link of device %d: %w", index, err)
	}
	a.tree.Log.Info("denylist attached", log.Int("ifindex", index))
	return nil
}

// attachXDP tries the driver first. What a driver says when it cannot differs: anything but "busy" is followed by the
// generic way, and the first answer is told when that fails too.
func attachXDP(index int, prog *bpfsys.Program) (*bpfsys.Link, error) {
	l, err := bpfsys.AttachXDP(prog, index, bpfsys.XDPDriver)
	if err == nil || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return l, err
	}
	g, genericErr := bpfsys.AttachXDP(prog, index, bpfsys.XDPGeneric)
	if genericErr != nil {
		return nil, fmt.Errorf("by the driver: %w; by the stack: %w", err, genericErr)
	}
	return g, nil
}
