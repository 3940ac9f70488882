// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/helperproc"
)

const (
	// DefaultZone is upstream's default of firewalldZone.
	DefaultZone = "trusted"

	// firewalldTimeout bounds a call: firewalld is single-threaded, and busy for
	// seconds while it reloads.
	firewalldTimeout = 15 * time.Second
)

// JobFirewalld is the helper's job: ZoneCalls in, a ZoneAnswer for each source out.
const JobFirewalld = "firewalld"

// ZoneCalls call a method of firewalld with the zone and each source in turn.
type ZoneCalls struct {
	Method  string   `json:"method"` // of org.fedoraproject.FirewallD1.zone, firewalld.dbus(5)
	Zone    string   `json:"zone"`
	Sources []string `json:"sources"` // none: only whether firewalld can be asked
}

// ZoneAnswer is firewalld's.
type ZoneAnswer struct {
	Error string `json:"error,omitempty"`
	Yes   bool   `json:"yes,omitempty"` // of a query
}

// FirewalldKinds are the errors of JobFirewalld that keep their identity.
func FirewalldKinds() helperproc.ErrorCodes { return helperproc.ErrorCodes{"unusable": ErrUnusable} }

// Firewalld puts the addresses of pods into a zone, by the system bus, which the
// helper talks on (package firewalld). Only the
// runtime configuration is changed: pods do not survive a reboot either. A
// complete reload of firewalld forgets them, which CHECK notices.
type Firewalld struct{ helper helperproc.Program }

// Name returns what records call it.
func (*Firewalld) Name() string { return NameFirewalld }

// Usable reports why firewalld cannot be asked.
func (f *Firewalld) Usable(ctx context.Context) error {
	return f.each(ctx, "", "", nil, nil)
}

// busThere saves most nodes the helper's start: without a system bus there is nobody to ask.
func busThere() bool {
	if os.Getenv("DBUS_SYSTEM_BUS_ADDRESS") != "" {
		return true
	}
	_, err := os.Stat("/var/run/dbus/system_bus_socket")
	return err == nil
}

// each calls a method with the zone and each address in turn.
func (f *Firewalld) each(ctx context.Context, method, zone string, addrs []netip.Addr, done func(netip.Addr, ZoneAnswer) error) error {
	if !busThere() {
		return fmt.Errorf("%w: no system bus", ErrUnusable)
	}
	ctx, cancel := context.WithTimeout(ctx, firewalldTimeout)
	defer cancel()
	calls := ZoneCalls{Method: method, Zone: zoneOf(zone)}
	for _, a := range addrs {
		calls.Sources = append(calls.Sources, host(a).String())
	}
	var answers []ZoneAnswer
	err := f.helper.Call(ctx, JobFirewalld, calls, &answers, nil, FirewalldKinds())
	if errors.Is(err, helperproc.ErrMissing) {
		err = fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if err != nil {
		return err
	}
	if len(answers) != len(addrs) {
		return fmt.Errorf("firewalld was asked %d times and answered %d", len(addrs), len(answers))
	}
	var errs []error
	for i, a := range addrs {
		errs = append(errs, done(a, answers[i]))
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
	return f.each(ctx, "addSource", zone, addrs, func(a netip.Addr, r ZoneAnswer) error {
		if r.Error == "" || strings.Contains(r.Error, "ALREADY_SET") {
			return nil
		}
		return fmt.Errorf("put %s into the zone %s: %s", a, zoneOf(zone), r.Error)
	})
}

// Del takes the addresses out of the zone. Missing is success, and so is a node
// where firewalld does not run: what it knew is gone with it.
func (f *Firewalld) Del(ctx context.Context, zone string, addrs []netip.Addr) error {
	err := f.each(ctx, "removeSource", zone, addrs, func(a netip.Addr, r ZoneAnswer) error {
		if r.Error == "" || strings.Contains(r.Error, "NOT_ENABLED") || strings.Contains(r.Error, "UNKNOWN_SOURCE") {
			return nil
		}
		return fmt.Errorf("take %s out of the zone %s: %s", a, zoneOf(zone), r.Error)
	})
	if errors.Is(err, ErrUnusable) {
		return nil
	}
	return err
}

// Check asks firewalld for each address, and believes its answer.
func (f *Firewalld) Check(ctx context.Context, zone string, addrs []netip.Addr) error {
	return f.each(ctx, "querySource", zone, addrs, func(a netip.Addr, r ZoneAnswer) error {
		if r.Error != "" {
			return fmt.Errorf("ask for %s in the zone %s: %s", a, zoneOf(zone), r.Error)
		}
		if !r.Yes {
			return fmt.Errorf("%w: %s is not in the zone %s", ErrDiffers, a, zoneOf(zone))
		}
		return nil
	})
}
