// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/maps/flow"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/undo"
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
}

func (p HostPort) key() hostport.Key {
	return hostport.Key{HostIP: p.HostIP.Unmap(), Proto: p.Proto, Port: p.Port}
}

func (p HostPort) value(owner, gen uint64) hostport.Value {
	v := hostport.Value{PodIP: p.PodIP.Unmap(), PodPort: p.PodPort, Owner: owner, Gen: gen}
	if p.SNAT {
		v.Flags |= hostport.FlagSNAT
	}
	if p.MasqAll {
		v.Flags |= hostport.FlagMasqAll
	}
	return v
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
	return nil
}

func (d *Datapath) hostPorts() (hostport.Map, error) {
	m, err := d.pinned(mapHostPorts)
	return hostport.New(m), err
}

// Publish makes ports the published ports of owner: keys it held before and that are not in ports are withdrawn. A key that
// another owner holds changes hands atomically, for new and for running flows. On error nothing is changed; the error wraps
// ErrFull when the map has no room.
func (d *Datapath) Publish(ctx context.Context, owner uint64, ports []HostPort) (err error) {
	want := make(map[hostport.Key]bool, len(ports))
	for _, p := range ports {
		if err := p.validate(); err != nil {
			return err
		}
		if want[p.key()] {
			return fmt.Errorf("published port %s: twice", p.key())
		}
		want[p.key()] = true
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
	before, err := owned(m, owner)
	if err != nil {
		return err
	}
	var back undo.Stack
	defer back.Rollback(ctx, &err)
	// The clock never stands still between two holders of the lock, and no generation is 0.
	gen := uint64(flow.Now())
	for _, p := range ports {
		if err := publish(m, p, p.value(owner, gen), &back); err != nil {
			return err
		}
	}
	for k := range before {
		if !want[k] {
			if err := m.Delete(k); err != nil {
				return fmt.Errorf("published port %s: %w", k, err)
			}
			v := before[k]
			back.Push("published port "+k.String(), func(context.Context) error { return m.Put(k, v) })
		}
	}
	if d.justSynced() {
		return nil
	}
	a := d.attacher("")
	defer a.Close()
	return d.sync(ctx, a)
}

// publish writes one entry. One that says the same already keeps its generation, so that its flows live on.
func publish(m hostport.Map, p HostPort, v hostport.Value, back *undo.Stack) error {
	k := p.key()
	old, had, err := m.Get(k)
	if err != nil {
		return fmt.Errorf("published port %s: %w", k, err)
	}
	same := old
	same.Gen = v.Gen
	if had && same == v {
		return nil
	}
	if err := m.Put(k, v); err != nil {
		return fmt.Errorf("published port %s: %w", k, full("sl_hostports", err))
	}
	back.Push("published port "+k.String(), func(context.Context) error {
		if had {
			return m.Put(k, old)
		}
		return m.Delete(k)
	})
	return nil
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

// Unpublish withdraws the keys of ports that owner still holds; nil means all it holds. What another owner has taken over
// stays. Missing is success.
func (d *Datapath) Unpublish(ctx context.Context, owner uint64, ports []HostPort) error {
	unlock, err := d.writer(ctx)
	if errors.Is(err, ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	m, err := d.hostPorts()
	if errors.Is(err, ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	var keys []hostport.Key
	if ports == nil {
		held, err := owned(m, owner)
		if err != nil {
			return err
		}
		for k := range held {
			keys = append(keys, k)
		}
	}
	for _, p := range ports {
		keys = append(keys, p.key())
	}
	var errs []error
	for _, k := range keys {
		v, ok, err := m.Get(k)
		if err == nil && ok && v.Owner == owner {
			err = m.Delete(k)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("published port %s: %w", k, err))
		}
	}
	return errors.Join(errs...)
}

// CheckPorts reports whether owner still holds every one of ports as published. The error wraps ErrDiffers.
func (d *Datapath) CheckPorts(_ context.Context, owner uint64, ports []HostPort) error {
	m, err := d.hostPorts()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range ports {
		got, ok, err := m.Get(p.key())
		want := p.value(owner, got.Gen)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !ok:
			errs = append(errs, fmt.Errorf("%w: port %s is not published", ErrDiffers, p.key()))
		case got.Owner != owner:
			errs = append(errs, fmt.Errorf("%w: port %s belongs to another attachment", ErrDiffers, p.key()))
		case got != want:
			errs = append(errs, fmt.Errorf("%w: port %s leads to %s, want %s", ErrDiffers, p.key(),
				netip.AddrPortFrom(got.PodIP, got.PodPort), netip.AddrPortFrom(p.PodIP, p.PodPort)))
		}
	}
	return errors.Join(errs...)
}
