// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// AddrHeldError says that another attachment, whose pod lives, holds an address.
type AddrHeldError struct {
	Addr    netip.Addr
	Owner   uint64 // of the holder, as attachments.ID.Owner returns it
	Ifindex int    // of the holder's host end
	IfName  string // of the same
}

// Error names the address and the device. The caller knows the holder's name by its Owner.
func (e *AddrHeldError) Error() string {
	return fmt.Sprintf("address %s: another attachment has it, on %s", e.Addr, e.IfName)
}

// holder returns the owner that addr is refused for: another one than the newcomer, on another device that exists. A veth goes
// with the network namespace of its other end, so its pod lives. nil: the address is free, or a leftover of a pod that is gone.
func holder(a *attach.Attacher, addr netip.Addr, old endpoint.Value, owner uint64, index int) (*AddrHeldError, error) {
	if old.Owner == owner || int(old.Ifindex) == index {
		return nil, nil
	}
	h, err := a.Netlink()
	if err != nil {
		return nil, err
	}
	l, err := h.LinkByIndex(int(old.Ifindex))
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("address %s: device %d of its holder: %w", addr, old.Ifindex, err)
	}
	return &AddrHeldError{addr, old.Owner, l.Index, l.Name}, nil
}

// refuseHeld returns the *AddrHeldError of the first of addrs that the pod of another owner has. index is the newcomer's host veth, 0
// while there is none. The cost is O(addrs).
func refuseHeld(a *attach.Attacher, eps pintree.EndpointMaps, owner uint64, index int, addrs []netip.Prefix) error {
	for _, p := range addrs {
		addr := p.Addr().Unmap()
		old, had, err := eps.Addrs.Get(addr)
		if err != nil {
			return fmt.Errorf("endpoint %s: %w", addr, err)
		}
		if !had {
			continue
		}
		held, err := holder(a, addr, old, owner, index)
		if err != nil {
			return err
		}
		if held != nil {
			return held
		}
	}
	return nil
}

// CheckFree returns an *AddrHeldError if another attachment holds one of addrs. A caller asks before its first effect. Enable asks again
// under the writers' lock: of two at the same time, one gets the address.
func (d *Datapath) CheckFree(_ context.Context, owner uint64, addrs []netip.Prefix) error {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return pintree.IgnoreNotLoaded(err) // Enable says what is wrong
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	return refuseHeld(a, eps, owner, 0, addrs)
}
