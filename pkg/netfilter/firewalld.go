// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// The D-Bus interface of firewalld, firewalld.dbus(5).
const (
	firewalldBus  = "org.fedoraproject.FirewallD1"
	firewalldPath = "/org/fedoraproject/FirewallD1"
	firewalldZone = firewalldBus + ".zone."

	// DefaultZone is the reference's default of firewalldZone.
	DefaultZone = "trusted"

	// firewalldTimeout bounds a call: firewalld is single-threaded, and busy for
	// seconds while it reloads.
	firewalldTimeout = 15 * time.Second
)

// Firewalld puts the addresses of pods into a zone, by the system bus. Only the
// runtime configuration is changed: pods do not survive a reboot either. A
// complete reload of firewalld forgets them, which CHECK notices.
type Firewalld struct{}

// Name returns what records call it.
func (*Firewalld) Name() string { return NameFirewalld }

// connect returns the bus, with firewalld on it.
func (*Firewalld) connect(ctx context.Context) (*dbus.Conn, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%w: no system bus: %w", ErrUnusable, err)
	}
	var owner string
	err = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, firewalldBus).Store(&owner)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: firewalld is not running: %w", ErrUnusable, err), conn.Close())
	}
	return conn, nil
}

// Usable reports why firewalld cannot be asked.
func (f *Firewalld) Usable(ctx context.Context) error {
	return f.each(ctx, "", nil, nil, nil)
}

// each calls a method with the zone and each address in turn.
func (f *Firewalld) each(ctx context.Context, method string, args func(netip.Addr) []any, addrs []netip.Addr, done func(netip.Addr, *dbus.Call) error) error {
	ctx, cancel := context.WithTimeout(ctx, firewalldTimeout)
	defer cancel()
	conn, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var errs []error
	for _, a := range addrs {
		call := conn.Object(firewalldBus, firewalldPath).CallWithContext(ctx, firewalldZone+method, 0, args(a)...)
		errs = append(errs, done(a, call))
	}
	return errors.Join(errs...)
}

func zoneOf(zone string) string {
	if zone == "" {
		return DefaultZone
	}
	return zone
}

// Add puts the addresses into the zone. One that is there already is no error;
// one that is in another zone is.
func (f *Firewalld) Add(ctx context.Context, zone string, addrs []netip.Addr) error {
	return f.each(ctx, "addSource", sourceArgs(zone), addrs, func(a netip.Addr, c *dbus.Call) error {
		if c.Err == nil || strings.Contains(c.Err.Error(), "ALREADY_SET") {
			return nil
		}
		return fmt.Errorf("put %s into the zone %s: %w", a, zoneOf(zone), c.Err)
	})
}

func sourceArgs(zone string) func(netip.Addr) []any {
	return func(a netip.Addr) []any { return []any{zoneOf(zone), host(a).String()} }
}

// Del takes the addresses out of the zone. Missing is success, and so is a node
// where firewalld does not run: what it knew is gone with it.
func (f *Firewalld) Del(ctx context.Context, zone string, addrs []netip.Addr) error {
	err := f.each(ctx, "removeSource", sourceArgs(zone), addrs, func(a netip.Addr, c *dbus.Call) error {
		if c.Err == nil || strings.Contains(c.Err.Error(), "NOT_ENABLED") || strings.Contains(c.Err.Error(), "UNKNOWN_SOURCE") {
			return nil
		}
		return fmt.Errorf("take %s out of the zone %s: %w", a, zoneOf(zone), c.Err)
	})
	if errors.Is(err, ErrUnusable) {
		return nil
	}
	return err
}

// Check asks firewalld for each address, and believes its answer.
func (f *Firewalld) Check(ctx context.Context, zone string, addrs []netip.Addr) error {
	return f.each(ctx, "querySource", sourceArgs(zone), addrs, func(a netip.Addr, c *dbus.Call) error {
		var in bool
		if err := c.Store(&in); err != nil {
			return fmt.Errorf("ask for %s in the zone %s: %w", a, zoneOf(zone), err)
		}
		if !in {
			return fmt.Errorf("%w: %s is not in the zone %s", ErrDiffers, a, zoneOf(zone))
		}
		return nil
	})
}
