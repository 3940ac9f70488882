// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// HostPort is one published port.
type HostPort struct {
	HostIP  netip.Addr `json:"hostIP"` // unspecified of its family: every address of the node
	Proto   uint8      `json:"proto"`  // IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP
	Port    uint16     `json:"port"`
	PodIP   netip.Addr `json:"podIP"`
	PodPort uint16     `json:"podPort"`
	SNAT    bool       `json:"snat,omitempty"`
	MasqAll bool       `json:"masqAll,omitempty"`

	Sources []netip.Prefix `json:"sources,omitempty"` // who may connect; empty: everybody
	Match   Match          `json:"match,omitzero"`    // what the port is for
}

// Match narrows what a published port is for. Zero fields match everything; what does not match is none of the port's.
type Match struct {
	Source    netip.Prefix `json:"source,omitzero"`
	Dest      netip.Prefix `json:"dest,omitzero"`
	In        string       `json:"in,omitempty"` // device of the node that the packet came in by
	NotSource bool         `json:"notSource,omitempty"`
	NotDest   bool         `json:"notDest,omitempty"`
	NotIn     bool         `json:"notIn,omitempty"`
}

// conditions finds the device. ErrNoDevice: there is none of that name.
func (m Match) conditions() (hostport.Conditions, error) {
	c := hostport.Conditions{Source: m.Source.Masked(), Dest: m.Dest.Masked(), NotSource: m.NotSource, NotDest: m.NotDest}
	if m.In == "" {
		return c, nil
	}
	h, err := rtnl.New()
	if err != nil {
		return c, err
	}
	defer h.Close()
	l, err := h.LinkByName(m.In)
	if errors.Is(err, rtnl.ErrNotFound) {
		return c, fmt.Errorf("%w: %s, of a condition", ErrNoDevice, m.In)
	}
	if err != nil {
		return c, err
	}
	c.In, c.NotIndex = uint32(l.Index), m.NotIn
	return c, nil
}

func (p HostPort) key() hostport.Key {
	return hostport.Key{HostIP: p.HostIP.Unmap(), Proto: p.Proto, Port: p.Port}
}

func (p HostPort) value(owner, gen uint64) (hostport.Value, error) {
	c, err := p.Match.conditions()
	v := hostport.Value{
		PodIP: p.PodIP.Unmap(), PodPort: p.PodPort, Owner: owner, Gen: gen,
		Sources: hostport.SourceList(masked(p.Sources)), Conditions: c,
	}
	if p.SNAT {
		v.Flags |= hostport.FlagSNAT
	}
	if p.MasqAll {
		v.Flags |= hostport.FlagMasqAll
	}
	if err != nil {
		err = fmt.Errorf("published port %s: %w", p.key(), err)
	}
	return v, err
}

func masked(nets []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(nets))
	for _, p := range nets {
		out = append(out, p.Masked())
	}
	return out
}

func (p HostPort) validate() error {
	switch {
	case !p.HostIP.IsValid() || !p.PodIP.IsValid() || p.PodIP.IsUnspecified():
		return fmt.Errorf("published port %d: not an address", p.Port)
	case p.HostIP.Unmap().Is4() != p.PodIP.Unmap().Is4():
		return fmt.Errorf("published port %s: the pod's address %s is of the other family", p.key(), p.PodIP)
	case p.Port == 0 || p.PodPort == 0 || p.Proto == 0:
		return fmt.Errorf("published port %s: no port or protocol", p.key())
	}
	for _, s := range p.Sources {
		if !s.IsValid() {
			return fmt.Errorf("published port %s: a source is not a network", p.key())
		}
	}
	return nil
}

func (d *Datapath) hostPorts() (hostport.Map, error) {
	m, err := d.pinned(mapHostPorts)
	if err != nil {
		return hostport.Map{}, err
	}
	e, err := d.pinned(mapCacheEpoch)
	return hostport.New(m, cacheepoch.New(e)), err
}

// Publish makes ports the published ports of owner: keys it held before and that are not in ports are withdrawn. A key that
// another owner holds changes hands atomically, for new and for running flows, and goes back when owner gives it up first. On
// error nothing is changed; the error wraps ErrFull when the map has no room.
func (d *Datapath) Publish(ctx context.Context, owner uint64, ports []HostPort) (err error) {
	want, err := keysOf(ports)
	if err != nil {
		return err
	}
	unlock, err := d.writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := d.hostPorts()
	if err != nil {
		return err
	}
	c, err := d.changePorts(m)
	if err != nil {
		return err
	}
	var back rollback.Stack
	defer back.Rollback(ctx, &err)
	if err := d.publish(c, owner, ports, want, &back); err != nil {
		return err
	}
	if len(ports) > 0 {
		d.ensureSockets()
	}
	if !d.justSynced() {
		a := d.attacher("")
		defer a.Close()
		if err := d.sync(ctx, a); err != nil {
			return err
		}
	}
	return c.end()
}

// publish replaces what owner has.
func (d *Datapath) publish(c *portChange, owner uint64, ports []HostPort, want map[hostport.Key]bool, back *rollback.Stack) error {
	before, err := owned(c.m, owner)
	if err != nil {
		return err
	}
	was := c.waiting.all
	back.Push("ports taken over", func(context.Context) error { return c.waiting.set(was) })
	if err := c.forget(func(w waitingPort) bool { return w.Value.Owner == owner }); err != nil {
		return err
	}
	// The clock never stands still between two holders of the lock, and no generation is 0.
	gen := uint64(conntrack.Now())
	for _, p := range ports {
		v, err := p.value(owner, gen)
		if err != nil {
			return err
		}
		if err := d.putSources(p); err != nil {
			return err
		}
		if err := c.put(p.key(), v, back); err != nil {
			return err
		}
	}
	for k, v := range before {
		if want[k] {
			continue
		}
		back.Push("published port "+k.String(), func(context.Context) error { return c.m.Put(k, v) })
		if err := c.withdraw(k, v); err != nil {
			return err
		}
	}
	return nil
}

// keysOf returns the keys of ports, which must be valid and differ.
func keysOf(ports []HostPort) (map[hostport.Key]bool, error) {
	keys := make(map[hostport.Key]bool, len(ports))
	for _, p := range ports {
		if err := p.validate(); err != nil {
			return nil, err
		}
		if keys[p.key()] {
			return nil, fmt.Errorf("published port %s: twice", p.key())
		}
		keys[p.key()] = true
	}
	return keys, nil
}

// owned returns what owner holds.
func owned(m hostport.Map, owner uint64) (map[hostport.Key]hostport.Value, error) {
	held := make(map[hostport.Key]hostport.Value)
	err := m.Each(func(k hostport.Key, v hostport.Value) bool {
		if v.Owner == owner {
			held[k] = v
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("published ports: %w", err)
	}
	return held, nil
}

// Unpublish withdraws the keys of ports that owner still holds, or waits for; nil means all. What another owner has taken over
// stays. Missing is success.
func (d *Datapath) Unpublish(ctx context.Context, owner uint64, ports []HostPort) error {
	return takeAway(ctx, d, d.hostPorts, func(m hostport.Map) error { return d.unpublish(m, owner, ports) })
}

// unpublish is Unpublish under the writers' lock.
func (d *Datapath) unpublish(m hostport.Map, owner uint64, ports []HostPort) error {
	var keys []hostport.Key
	if ports == nil {
		held, err := owned(m, owner)
		if err != nil {
			return err
		}
		keys = slices.Collect(maps.Keys(held))
	}
	for _, p := range ports {
		keys = append(keys, p.key())
	}
	c, err := d.changePorts(m)
	if err != nil {
		return err
	}
	errs := []error{c.forget(func(w waitingPort) bool {
		return w.Value.Owner == owner && (ports == nil || slices.Contains(keys, w.Key))
	})}
	for _, k := range keys {
		v, ok, err := m.Get(k)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("published port %s: %w", k, err))
		case ok && v.Owner == owner:
			errs = append(errs, c.withdraw(k, v))
		}
	}
	return errors.Join(append(errs, c.end())...)
}

// putSources makes the list of a port's sources. It is not taken back: the sweep does that.
func (d *Datapath) putSources(p HostPort) error {
	if len(p.Sources) == 0 {
		return nil
	}
	raw, err := d.pinned(mapHostPortAllowlist)
	if err != nil {
		return err
	}
	if _, err := hostport.NewSources(raw).Put(masked(p.Sources)); err != nil {
		return fmt.Errorf("sources of published port %s: %w", p.key(), full("sl_hp_allowlist", err))
	}
	return nil
}

// CheckPorts reports whether owner still holds every one of ports as published. The error wraps ErrDiffers.
func (d *Datapath) CheckPorts(_ context.Context, owner uint64, ports []HostPort) error {
	m, err := d.hostPorts()
	if err != nil {
		return err
	}
	errs := []error{d.checkSockets()}
	for _, p := range ports {
		got, ok, err := m.Get(p.key())
		want, werr := p.value(owner, got.Gen)
		switch {
		case err != nil:
			errs = append(errs, err)
		case errors.Is(werr, ErrNoDevice):
			errs = append(errs, fmt.Errorf("%w: %w", ErrDiffers, werr))
		case werr != nil:
			errs = append(errs, werr)
		case !ok:
			errs = append(errs, fmt.Errorf("%w: port %s is not published", ErrDiffers, p.key()))
		case got.Owner != owner:
			errs = append(errs, fmt.Errorf("%w: port %s belongs to another attachment", ErrDiffers, p.key()))
		case got == want:
			errs = append(errs, d.checkSources(p))
		case got.PodIP == want.PodIP && got.PodPort == want.PodPort:
			errs = append(errs, fmt.Errorf("%w: port %s has other options: %+v, want %+v", ErrDiffers, p.key(), got, want))
		default:
			errs = append(errs, fmt.Errorf("%w: port %s leads to %s, want %s", ErrDiffers, p.key(),
				netip.AddrPortFrom(got.PodIP, got.PodPort), netip.AddrPortFrom(p.PodIP, p.PodPort)))
		}
	}
	return errors.Join(errs...)
}

// checkSources looks whether the list of a port's sources is whole.
func (d *Datapath) checkSources(p HostPort) error {
	if len(p.Sources) == 0 {
		return nil
	}
	raw, err := d.pinned(mapHostPortAllowlist)
	if err != nil {
		return err
	}
	ok, err := hostport.NewSources(raw).Has(masked(p.Sources))
	if err == nil && !ok {
		err = differs("the sources of port %s are not %v", p.key(), p.Sources)
	}
	return err
}
