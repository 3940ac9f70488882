// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/choice"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Remover is what removing works with.
type Remover struct {
	Tables interface {
		Remove(ctx context.Context, traces []netfilter.RuleSet) error
	}
	// Collect is (*loader.Datapath).GC; nil: nothing is loaded.
	Collect func(ctx context.Context, keep func(owner uint64) bool) error
	Records *attachments.Dir
}

// settle is how long an intermediate device must go without a filter: the
// upstream plugin makes the device first, and nothing says whose it is yet.
const settle = time.Second

// Remove removes items of a report. What may not be swept is passed over, and
// everything is looked at again under the lock of its kind before it goes: an
// attachment may have come back. It goes on after errors.
func (b Remover) Remove(ctx context.Context, items []Item) error {
	var errs []error
	var traces []netfilter.RuleSet
	stale := make(map[uint64]bool)
	for _, i := range items {
		switch {
		case !i.Removable:
		case i.trace != nil:
			traces = append(traces, *i.trace)
		case i.Kind == Datapath:
			stale[i.owner] = true
		}
	}
	if len(traces) > 0 {
		errs = append(errs, b.Tables.Remove(ctx, traces))
	}
	if len(stale) > 0 && b.Collect != nil {
		errs = append(errs, b.Collect(ctx, func(owner uint64) bool { return !stale[owner] || b.cameBack(owner) }))
	}
	if slices.ContainsFunc(items, func(i Item) bool { return i.Removable && i.Kind == IFB }) {
		time.Sleep(settle)
	}
	for _, i := range items {
		switch {
		case !i.Removable:
		case i.Kind == IFB:
			errs = append(errs, removeIFB(i.link))
		case i.Kind == Record:
			errs = append(errs, b.removeRecord(i.record.ID))
		}
	}
	return errors.Join(errs...)
}

// cameBack reports that an owner has a record of something alive by now. When
// the records cannot be read everything may have come back.
func (b Remover) cameBack(owner uint64) bool {
	records, err := b.Records.List("")
	if err != nil {
		return true
	}
	for _, r := range records {
		if r.Owner() == owner && stateOf(r.NetNS) != Dead {
			return true
		}
	}
	return false
}

func (b Remover) removeRecord(ref attachments.ID) error {
	r, err := b.Records.Load(ref)
	if errors.Is(err, attachments.ErrNotExist) {
		return nil
	}
	if err != nil || r.Corrupt || stateOf(r.NetNS) != Dead {
		return err
	}
	var errs []error
	for name := range r.Plugins {
		errs = append(errs, b.Records.Remove(ref, name))
	}
	return errors.Join(errs...)
}

// removeIFB removes a device that is still what it was taken for.
func removeIFB(name string) error {
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	links, err := h.Links()
	if err != nil {
		return err
	}
	used, err := Redirected(h, links)
	if err != nil || used[l.Index] || l.Kind != "ifb" {
		return err
	}
	if err := h.DelLink(l.Index); err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}

// Redirected are the devices that filters of other devices send packets to.
func Redirected(h *rtnl.Handle, links []rtnl.Link) (map[int]bool, error) {
	used := make(map[int]bool)
	for _, l := range links {
		if l.Kind == "ifb" {
			continue
		}
		for _, hook := range []uint32{rtnl.HookIngress, rtnl.HookEgress} {
			filters, err := h.Filters(l.Index, hook)
			if errors.Is(err, rtnl.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			for _, f := range filters {
				used[f.RedirectTo] = true
			}
		}
	}
	return used, nil
}

// Scan looks at the node of the calling thread. dp may be nil. The error names
// what could not be looked at; the inventory holds the rest.
func Scan(ctx context.Context, dp loader.Interface, tables *choice.Node, records *attachments.Dir, p Places) (*Inventory, error) {
	s := &Inventory{}
	var errs []error
	keep := func(err error) { errs = append(errs, err) }
	var err error
	// What is made is written down before: who looks at records after rules does
	// not take a new attachment for none.
	if dp != nil {
		s.Endpoints, err = dp.Endpoints(ctx)
		keep(err)
		s.Ports, err = dp.HostPorts(ctx)
		keep(err)
		s.RateLimits, err = dp.RateLimits(ctx)
		keep(err)
	}
	s.Traces, err = tables.RuleSets(ctx)
	keep(err)
	keep(s.seeLinks())
	s.Records, err = records.List("")
	keep(err)
	s.Known, err = Look(s.Records, p)
	keep(err)
	return s, errors.Join(errs...)
}

func (s *Inventory) seeLinks() error {
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	if s.Links, err = h.Links(); err != nil {
		return err
	}
	for _, l := range s.Links {
		if l.Kind == "ifb" && IsIFB(l.Name) {
			s.Redirected, err = Redirected(h, s.Links)
			return err
		}
	}
	return nil
}
