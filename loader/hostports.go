// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// newHostPort returns m as it goes into the map. ErrNoDevice: there is no device of the name in its conditions.
func newHostPort(m hostport.Mapping, owner, generation uint64) (hostport.Entry, error) {
	index, err := inIfindex(m.Conditions.InDevice)
	m.Conditions.InIfindex = index
	e := hostport.NewEntry(m, owner, generation)
	if err != nil {
		err = fmt.Errorf("published port %s: %w", e.Key, err)
	}
	return e, err
}

// inIfindex returns the index of the device in a condition, 0 for no name.
func inIfindex(device string) (uint32, error) {
	if device == "" {
		return 0, nil
	}
	h, err := rtnl.New()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	l, err := h.LinkByName(device)
	if errors.Is(err, rtnl.ErrNotFound) {
		return 0, fmt.Errorf("%w: %s, of a condition", ErrNoDevice, device)
	}
	if err != nil {
		return 0, err
	}
	return uint32(l.Index), nil
}

// HostPortLimits are what one attachment may have.
func (d *Datapath) HostPortLimits() hostport.Limits {
	return hostport.Limits{Mappings: d.tree.Config.HostPortsPerAttachment, Sources: d.tree.Config.AllowedSourcesPerAttachment}
}

// SetHostPorts makes ports the hostPorts of owner, and removes those of before that are not in ports. before are the keys that
// owner may hold, as its attachment record has them. nil means not known: SetHostPorts then reads the whole map, O(hostPorts of the
// node), for what owner holds. Otherwise the cost is O(before and ports).
//
// A key that another owner holds passes to owner atomically, for new and for running connections. It goes back to the other one
// when owner gives it up first. behind returns the other attachments of the pod, which keep what they hold or wait for: owner has
// such a key when they have given it up. It is called where another owner has a key, so that a full node costs no ADD more.
// On an error nothing is changed. The error wraps ErrFull when the map has no room, and hostport.ErrTooMany or ErrTooManySources for
// more than one attachment may have.
func (d *Datapath) SetHostPorts(ctx context.Context, owner uint64, before []hostport.Key, ports []hostport.Mapping, behind ...func() []uint64) error {
	if err := d.HostPortLimits().Check(ports); err != nil {
		return err
	}
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := d.tree.HostPortMap()
	if err != nil {
		return err
	}
	return d.setHostPortsLocked(ctx, m, owner, before, ports, behind...)
}

// setHostPortsLocked is SetHostPorts under the writers' lock.
func (d *Datapath) setHostPortsLocked(ctx context.Context, m hostPortMap, owner uint64, before []hostport.Key, ports []hostport.Mapping, behind ...func() []uint64) (err error) {
	want, err := hostPortKeys(ports)
	if err != nil {
		return err
	}
	c, err := d.changePorts(m, behind...)
	if err != nil {
		return err
	}
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)
	if err := c.setAll(owner, before, ports, want, &rb); err != nil {
		return err
	}
	if len(ports) > 0 {
		attach.EnsureSockets(d.tree)
	}
	if !d.recentlySynced() {
		a := attach.NewAttacher(d.tree, "")
		defer a.Close()
		if err := d.syncPod(ctx, a, 0); err != nil {
			return err
		}
	}
	d.dropPeers(c.gone)
	return nil
}

// setAll replaces what owner has.
func (c *portChange) setAll(owner uint64, before []hostport.Key, ports []hostport.Mapping, want map[hostport.Key]bool, rb *rollback.Stack) error {
	held, err := heldHostPorts(c.m, owner, before)
	if err != nil {
		return err
	}
	was := c.waiting.all
	if hostport.AllowlistSize(ports) > 0 { // first of all, so that it comes when the entries have gone
		rb.Push("allowed sources", func(context.Context) error { return c.dropUnusedLists() })
	}
	rb.Push("ports taken over", func(context.Context) error { return c.waiting.set(was) })
	if err := c.forget(func(w hostport.Entry) bool { return w.Owner == owner && !w.IsClaim() }); err != nil {
		return err
	}
	// The clock never stands still between two holders of the lock, and no generation is 0.
	generation := uint64(conntrack.Now())
	entries := make([]hostport.Entry, 0, len(ports))
	listed := map[uint64]bool{0: true}
	for _, p := range ports {
		e, err := newHostPort(p, owner, generation)
		if err != nil {
			return err
		}
		if !listed[e.Allowlist] {
			if err := c.putAllowlist(e, entries); err != nil {
				return err
			}
			listed[e.Allowlist] = true
		}
		entries = append(entries, e)
	}
	if err := c.putAll(entries, rb); err != nil {
		return err
	}
	held = slices.DeleteFunc(held, func(e hostport.Entry) bool { return want[e.Key] || e.IsClaim() })
	for _, e := range held {
		rb.Push("published port "+e.Key.String(), func(context.Context) error { return c.m.Put(e) })
	}
	return c.withdrawAll(held)
}

// hostPortKeys returns the keys of ports, which must be valid and differ.
func hostPortKeys(ports []hostport.Mapping) (map[hostport.Key]bool, error) {
	keys := make(map[hostport.Key]bool, len(ports))
	for _, p := range ports {
		if err := p.Validate(); err != nil {
			return nil, err
		}
		k := p.Key.Unmap()
		if keys[k] {
			return nil, fmt.Errorf("published port %s: twice", k)
		}
		keys[k] = true
	}
	return keys, nil
}

// heldHostPorts returns the entries of owner: those among keys, or with nil all of them, which takes a read of the whole map. It goes on after
// errors.
func heldHostPorts(m hostPortMap, owner uint64, keys []hostport.Key) ([]hostport.Entry, error) {
	if keys == nil {
		return hostPortsWhere(m, func(e hostport.Entry) bool { return e.Owner == owner })
	}
	var out []hostport.Entry
	var errs []error
	for _, k := range keys {
		e, ok, err := m.Get(k.Unmap())
		if err != nil {
			errs = append(errs, fmt.Errorf("published port %s: %w", k, err))
		}
		if ok && e.Owner == owner {
			out = append(out, e)
		}
	}
	return out, errors.Join(errs...)
}

// hostPortsWhere returns the entries that f accepts. It reads the whole map.
func hostPortsWhere(m hostPortMap, f func(hostport.Entry) bool) ([]hostport.Entry, error) {
	var out []hostport.Entry
	err := m.Each(func(e hostport.Entry) bool {
		if f(e) {
			out = append(out, e)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("published ports: %w", err)
	}
	return out, nil
}

// RemoveHostPorts removes the hostPorts among keys that owner still holds or waits for. nil means all of them: RemoveHostPorts then
// reads the whole map. What another owner has taken over stays. Missing is success.
func (d *Datapath) RemoveHostPorts(ctx context.Context, owner uint64, keys []hostport.Key) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.tree.HostPortMap, func(m hostport.Map) error { return d.removeHostPortsLocked(m, owner, keys, false) })
}

// ClaimHostPorts leaves keys to the netfilter rules of owner. A key that another owner holds passes to owner, as with SetHostPorts, and
// goes back by ReleaseHostPorts. behind is that of SetHostPorts. ErrFull: the map has no room. No other owner has the key then, and some
// keys may not be claimed.
func (d *Datapath) ClaimHostPorts(ctx context.Context, owner uint64, keys []hostport.Key, behind ...func() []uint64) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.tree.HostPortMap, func(m hostport.Map) (err error) {
		c, err := d.changePorts(m, behind...)
		if err != nil {
			return err
		}
		var rb rollback.Stack
		defer rb.Rollback(ctx, &err)
		generation := uint64(conntrack.Now())
		claimed := make(map[hostport.Key]bool, len(keys))
		var claims []hostport.Entry
		for _, k := range keys {
			if k = k.Unmap(); !claimed[k] {
				claimed[k] = true
				claims = append(claims, hostport.NewClaim(k, owner, generation))
			}
		}
		if err := c.forget(func(w hostport.Entry) bool { return w.Owner == owner && claimed[w.Key] && w.IsClaim() }); err != nil {
			return err
		}
		if err := c.putAll(claims, &rb); err != nil {
			return err
		}
		d.dropPeers(c.gone)
		return nil
	})
}

// ReleaseHostPorts takes back what ClaimHostPorts did for keys, with nil for all of owner. The last who waits for a key has it again.
// Missing is success.
func (d *Datapath) ReleaseHostPorts(ctx context.Context, owner uint64, keys []hostport.Key) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.tree.HostPortMap, func(m hostport.Map) error { return d.removeHostPortsLocked(m, owner, keys, true) })
}

// removeHostPortsLocked is RemoveHostPorts, or for claims ReleaseHostPorts, under the writers' lock.
func (d *Datapath) removeHostPortsLocked(m hostPortMap, owner uint64, keys []hostport.Key, claims bool) error {
	c, err := d.changePorts(m)
	if err != nil {
		return err
	}
	held, err := heldHostPorts(c.m, owner, keys)
	given := make(map[hostport.Key]bool, len(keys))
	for _, k := range keys {
		given[k.Unmap()] = true
	}
	errs := []error{err, c.forget(func(w hostport.Entry) bool {
		return w.Owner == owner && w.IsClaim() == claims && (keys == nil || given[w.Key])
	})}
	held = slices.DeleteFunc(held, func(e hostport.Entry) bool { return e.IsClaim() != claims })
	errs = append(errs, c.withdrawAll(held))
	d.dropPeers(c.gone)
	return errors.Join(errs...)
}

func (d *Datapath) hostPortAllowlists() (hostport.Allowlists, error) {
	m, err := d.tree.Pinned(pintree.MapHostPortAllowlist)
	return hostport.NewAllowlists(m), err
}

// putAllowlist makes the list of e's sources. others are of the same change, and not in the map yet. Nothing counts the users of a list, so one whose last port goes stays: to know that would
// take a read of the whole map. It goes with GC, or here when the map has no room.
func (c *portChange) putAllowlist(e hostport.Entry, others []hostport.Entry) error {
	if len(e.AllowedSources) == 0 {
		return nil
	}
	lists, err := c.d.hostPortAllowlists()
	if err != nil {
		return err
	}
	_, err = lists.Put(e.AllowedSources)
	if errors.Is(err, unix.ENOSPC) {
		// The new list may lose what it has got of its networks: no port names it yet. What this change has removed may come back.
		if err := c.dropUnusedLists(slices.Concat(c.gone, others)...); err != nil {
			return err
		}
		_, err = lists.Put(e.AllowedSources)
	}
	if err != nil {
		return fmt.Errorf("sources of published port %s: %w", e.Key, pintree.WrapFull("sl_hp_allowlist", err))
	}
	return nil
}

// CheckHostPorts reports whether owner still holds each of ports as it was set, or waits for one that an attachment of behind holds. The
// error wraps ErrDiffers.
func (d *Datapath) CheckHostPorts(_ context.Context, owner uint64, ports []hostport.Mapping, behind ...func() []uint64) error {
	m, err := d.tree.HostPortMap()
	if err != nil {
		return err
	}
	errs := []error{attach.CheckSockets(d.tree)}
	for _, p := range ports {
		got, ok, err := m.Get(p.Key.Unmap())
		if err == nil && ok && got.Owner != owner {
			got, err = d.waiterBehind(got, owner, behind)
		}
		want, werr := newHostPort(p, owner, got.Generation)
		switch {
		case err != nil:
			errs = append(errs, err)
		case errors.Is(werr, ErrNoDevice):
			errs = append(errs, fmt.Errorf("%w: %w", ErrDiffers, werr))
		case werr != nil:
			errs = append(errs, werr)
		case !ok:
			errs = append(errs, fmt.Errorf("%w: port %s is not published", ErrDiffers, want.Key))
		case got.Owner != owner:
			errs = append(errs, fmt.Errorf("%w: port %s belongs to another attachment", ErrDiffers, want.Key))
		case got.Equal(want):
			errs = append(errs, d.checkAllowlist(want))
		case got.PodIP == want.PodIP && got.PodPort == want.PodPort:
			errs = append(errs, fmt.Errorf("%w: port %s has other options: %s, want %s", ErrDiffers, want.Key, got, want))
		default:
			errs = append(errs, fmt.Errorf("%w: port %s leads to %s, want %s", ErrDiffers, want.Key,
				netip.AddrPortFrom(got.PodIP, got.PodPort), netip.AddrPortFrom(want.PodIP, want.PodPort)))
		}
	}
	return errors.Join(errs...)
}

// waiterBehind returns the entry by which owner waits for what an attachment of behind holds, or the holder's.
func (d *Datapath) waiterBehind(holder hostport.Entry, owner uint64, behind []func() []uint64) (hostport.Entry, error) {
	if !slices.Contains(ownersOf(behind), holder.Owner) {
		return holder, nil
	}
	waiting, err := d.waitlist()
	if i := waiterIndex(waiting.all, holder.Key, owner); i >= 0 {
		return waiting.all[i], nil
	}
	return holder, err
}

// checkAllowlist looks whether the list of e's sources is whole.
func (d *Datapath) checkAllowlist(e hostport.Entry) error {
	if len(e.AllowedSources) == 0 {
		return nil
	}
	lists, err := d.hostPortAllowlists()
	if err != nil {
		return err
	}
	ok, err := lists.Has(e.AllowedSources)
	if err == nil && !ok {
		err = pintree.Differs("the sources of port %s are not %v", e.Key, e.AllowedSources)
	}
	return err
}

// HostPorts returns the hostPorts in the order of address, protocol and port, with the sources of their allowlists and the names of the
// devices in their conditions.
func (d *Datapath) HostPorts(_ context.Context) ([]hostport.Entry, error) {
	m, err := d.tree.HostPortMap()
	if err != nil {
		return nil, err
	}
	lists, err := d.hostPortAllowlists()
	if err != nil {
		return nil, err
	}
	sources, err := lists.All()
	if err != nil {
		return nil, err
	}
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var out []hostport.Entry
	err = m.Each(func(e hostport.Entry) bool {
		e.AllowedSources, e.Conditions.InDevice = sources[e.Allowlist], inDevice(h, e.Conditions.InIfindex)
		out = append(out, e)
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b hostport.Entry) int {
		return cmp.Or(a.HostIP.Compare(b.HostIP), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	return out, nil
}

// inDevice names the device of a condition, by its number if it does not exist any more.
func inDevice(h *rtnl.Handle, index uint32) string {
	if index == 0 {
		return ""
	}
	if l, err := h.LinkByIndex(int(index)); err == nil {
		return l.Name
	}
	return "#" + strconv.Itoa(int(index))
}

// collectHostPorts removes the hostPorts and the waiters whose owner is not valid. It goes on after errors. The writers' lock is held.
func (d *Datapath) collectHostPorts(valid func(uint64) bool) error {
	m, err := d.tree.HostPortMap()
	if err != nil {
		return err
	}
	stale, err := hostPortsWhere(m, func(e hostport.Entry) bool { return !valid(e.Owner) })
	if err != nil {
		return err
	}
	c, err := d.changePorts(m)
	if err != nil {
		return err
	}
	err = c.forget(func(w hostport.Entry) bool { return !valid(w.Owner) })
	err = errors.Join(err, c.withdrawAll(stale))
	d.dropPeers(c.gone)
	return errors.Join(err, c.dropUnusedLists())
}
