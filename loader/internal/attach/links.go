// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/file"
)

// Defunct reports whether the pinned link hangs on no device any more: the kernel then says ifindex 0.
func Defunct(pin string) (bool, error) {
	l, err := bpfsys.OpenLink(pin)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("link %s: %w", filepath.Base(pin), err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("link %s: %w", filepath.Base(pin), err)
	}
	return info.OnDevice() && info.Ifindex == 0, nil
}

// putLink reports whether there was a link, whose program it has changed.
func putLink(t *pintree.Tree, index int, h hook.Hook, prog *bpfsys.Program) (updated bool, err error) {
	pin := t.Paths.LinkPin(index, h)
	switch updated, err := updateLink(pin, prog); {
	case err != nil:
		return false, fmt.Errorf("link %s: %w", filepath.Base(pin), err)
	case updated:
		return true, nil
	}
	l, err := attachLink(index, h, prog)
	if errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("%s link on device %d: %w", how(h), index, pintree.ErrNoDevice)
	}
	if err != nil {
		return false, fmt.Errorf("%s link of %s on device %d: %w", how(h), h.Program, index, err)
	}
	// Closing detaches unless the pin holds the link: a crash here leaves nothing.
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return false, fmt.Errorf("pin link %s: %w", filepath.Base(pin), err)
	}
	return false, nil
}

// attachLink makes a link at the end of the chain, or at its beginning for a hook that comes before the others. A link whose pin was removed by hand goes in the kernel's own time, and until
// then the program counts as being there: that is waited for.
func attachLink(index int, h hook.Hook, prog *bpfsys.Program) (*bpfsys.Link, error) {
	attach := func() (*bpfsys.Link, error) { return bpfsys.AttachTCX(prog, index, h.TCX()) }
	switch {
	case h.Netkit:
		attach = func() (*bpfsys.Link, error) {
			return bpfsys.AttachNetkit(prog, index, bpfsys.NetkitPeer, h.Rank < 0)
		}
	case h.Rank < 0:
		attach = func() (*bpfsys.Link, error) { return bpfsys.AttachTCXFirst(prog, index, h.TCX()) }
	}
	const patience, step = time.Second, 5 * time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(step) {
		l, err := attach()
		if !errors.Is(err, unix.EEXIST) || time.Now().After(end) {
			return l, err
		}
	}
}

// how is the way of links for h.
func how(h hook.Hook) string {
	if h.Netkit {
		return hook.HowNetkit
	}
	return hook.HowTCX
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
	if errors.Is(err, unix.ENOLINK) { // the device went, or another process detached it by force
		return false, file.Remove(pin)
	}
	return err == nil, err
}

// DropLink detaches and removes the pin; missing is success. Removing the pin alone would do, but later: the kernel would refuse
// to attach the same program again for some milliseconds.
func DropLink(t *pintree.Tree, index int, h hook.Hook) error {
	return dropPin(t.Paths.LinkPin(index, h))
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
	return pintree.RemovePin(pin)
}
