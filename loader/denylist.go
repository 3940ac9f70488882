// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/maps/denylist"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// ErrNotDenied says that a network is not in the denylist.
var ErrNotDenied = errors.New("not in the denylist")

// DenyStatus is the denylist and where it is in force.
type DenyStatus struct {
	Entries []DenyEntry  `json:"entries"`
	Devices []DenyDevice `json:"devices"`
}

// DenyEntry is a network that nothing may come from.
type DenyEntry struct {
	Network netip.Prefix `json:"network"`
	Packets uint64       `json:"packets"` // dropped since it was added
}

// DenyDevice is an uplink.
type DenyDevice struct {
	Ifindex int    `json:"ifindex"`
	Name    string `json:"name"`
	Mode    string `json:"mode"`          // "native", "generic"; "none" while the list is empty, or for the reason in Why
	Why     string `json:"why,omitempty"` // the list is not in force here
}

func (d *Datapath) denylistMap() (denylist.Map, error) {
	m, err := d.tree.Pinned(pintree.MapDenylist)
	return denylist.New(m), err
}

// DenyAdd adds networks to the denylist, and attaches its program to the uplinks if the list was empty. One that is there is no
// error. An uplink with another owner's XDP program is left as it is: the error wraps ErrConflict, the list is in force on the
// others.
func (d *Datapath) DenyAdd(ctx context.Context, networks []netip.Prefix) error {
	return d.changeDenylist(ctx, func(m denylist.Map) error {
		err := m.Add(networks...)
		if errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("%w: no room in the denylist, whose size is fixed, for %w and what came after it", ErrFull, err)
		}
		return err
	})
}

// DenyDelete takes networks out of the list, and its program from the uplinks with the last. One that is not there is
// an error that wraps ErrNotDenied; the others go.
func (d *Datapath) DenyDelete(ctx context.Context, networks []netip.Prefix) error {
	return d.changeDenylist(ctx, func(m denylist.Map) error {
		var errs []error
		for _, p := range networks {
			was, err := m.Delete(p)
			if err == nil && !was {
				err = fmt.Errorf("%w: %s", ErrNotDenied, p.Masked())
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// changeDenylist changes the list under the writers' lock, and brings the uplinks in line with it whatever came of that.
func (d *Datapath) changeDenylist(ctx context.Context, change func(denylist.Map) error) error {
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := d.denylistMap()
	if err != nil {
		return err
	}
	err = change(m)
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	if syncErr := d.syncLocked(ctx, a); syncErr != nil {
		return errors.Join(err, syncErr)
	}
	uplinks, upErr := d.uplinkIndexes()
	return errors.Join(err, upErr, d.syncDenylist(a, uplinks))
}

func (d *Datapath) uplinkIndexes() (map[int]endpoint.Sources, error) {
	_, indexes, err := d.tree.AttachedDevices()
	out := make(map[int]endpoint.Sources, len(indexes))
	for i, bare := range indexes {
		out[i] = endpoint.Sources{Bare: bare}
	}
	return out, err
}

// syncDenylist makes the uplinks have the program while the list holds something, and nothing else have it.
func (d *Datapath) syncDenylist(a *attach.Attacher, uplinks map[int]endpoint.Sources) error {
	pinned, err := attach.XdpPinned(d.tree)
	return errors.Join(err, d.syncDenylistAt(a, uplinks, pinned))
}

// syncDenylistKnown is Sync where only uplinks and were, the devices that were uplinks before, can have the program. It does not list the pins
// of links, where a pod may have two.
func (d *Datapath) syncDenylistKnown(a *attach.Attacher, uplinks map[int]endpoint.Sources, were []uint32) error {
	var pinned []int
	for index := range uplinks {
		were = append(were, uint32(index))
	}
	for _, dev := range were {
		if index := int(dev); !slices.Contains(pinned, index) && pintree.Exists(d.tree.Paths.LinkPin(index, hook.XDP())) {
			pinned = append(pinned, index)
		}
	}
	return d.syncDenylistAt(a, uplinks, pinned)
}

func (d *Datapath) syncDenylistAt(a *attach.Attacher, uplinks map[int]endpoint.Sources, pinned []int) error {
	m, err := d.denylistMap()
	if err != nil {
		return err
	}
	empty, err := m.Empty()
	if err != nil {
		return fmt.Errorf("denylist: %w", err)
	}
	var errs []error
	for _, index := range pinned {
		if _, ok := uplinks[index]; !ok || empty {
			errs = append(errs, attach.DropLink(d.tree, index, hook.XDP()))
		}
	}
	if empty {
		return errors.Join(errs...)
	}
	for index, src := range uplinks {
		if !src.Bare { // there the program on tc looks at the list
			errs = append(errs, a.PutXDP(index, false))
		}
	}
	return errors.Join(errs...)
}

// Deny returns the denylist and how it is in force on each uplink.
func (d *Datapath) Deny(_ context.Context) (*DenyStatus, error) {
	m, err := d.denylistMap()
	if err != nil {
		return nil, err
	}
	list, err := m.All()
	if err != nil {
		return nil, fmt.Errorf("denylist: %w", err)
	}
	s := &DenyStatus{Entries: make([]DenyEntry, 0, len(list)), Devices: []DenyDevice{}}
	for p, n := range list {
		s.Entries = append(s.Entries, DenyEntry{p, n})
	}
	slices.SortFunc(s.Entries, func(a, b DenyEntry) int {
		return cmp.Or(a.Network.Addr().Compare(b.Network.Addr()), a.Network.Bits()-b.Network.Bits())
	})
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	uplinks, err := d.uplinkIndexes()
	if err != nil {
		return nil, err
	}
	ids, err := programs.ProgramIDs(d.tree)
	if err != nil {
		return nil, err
	}
	for index, src := range uplinks {
		if src.Bare {
			continue
		}
		if dev, ok := d.denyDevice(h, index, ids, len(list) > 0); ok {
			s.Devices = append(s.Devices, dev)
		}
	}
	slices.SortFunc(s.Devices, func(a, b DenyDevice) int { return a.Ifindex - b.Ifindex })
	return s, nil
}

func (d *Datapath) denyDevice(h *rtnl.Handle, index int, ids map[string]uint32, wanted bool) (DenyDevice, bool) {
	l, err := h.LinkByIndex(index)
	if err != nil {
		return DenyDevice{}, false
	}
	dev := DenyDevice{Ifindex: index, Name: l.Name, Mode: "none"}
	switch p, ok := d.xdpStatus(h, index, ids); {
	case ok && p.ID != 0:
		dev.Mode = p.How
	case !wanted:
	case l.XDP.Mode != "":
		dev.Why = fmt.Sprintf("it has an XDP program of somebody else (%s, id %d), which stays", l.XDP.Mode, l.XDP.ID)
	default:
		dev.Why = "not attached: run sluice resync"
	}
	return dev, true
}

// xdpStatus describes our program on an uplink; false when it has none.
func (d *Datapath) xdpStatus(h *rtnl.Handle, index int, ids map[string]uint32) (ProgramStatus, bool) {
	at := hook.XDP()
	if !pintree.Exists(d.tree.Paths.LinkPin(index, at)) {
		return ProgramStatus{}, false
	}
	p := ProgramStatus{Name: at.Program, Hook: "xdp"}
	l, err := h.LinkByIndex(index)
	if err != nil || l.XDP.ID == 0 || l.XDP.ID != ids[at.Program] {
		return p, true
	}
	p.How, p.ID, p.OK = l.XDP.Mode, l.XDP.ID, true
	return p, true
}
