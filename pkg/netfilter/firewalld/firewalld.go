// SPDX-License-Identifier: Apache-2.0

// Package firewalld puts the addresses of pods into a zone of firewalld, for the
// firewall plugin, and tells package choice whether firewalld runs. It asks through the helper, as the library of the system bus is
// too large for a plugin: package bus is the helper's part. It knows no rules.
package firewalld

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

const (
	// DefaultZone is upstream's default of firewalldZone.
	DefaultZone = "trusted"

	// timeout bounds a call: firewalld is single-threaded, and busy for
	// seconds while it reloads.
	timeout = 15 * time.Second
)

// Job is the helper's job: Calls in, an Answer for each source out.
const Job = "firewalld"

// Calls call a method of firewalld with the zone and each source in turn.
type Calls struct {
	Method  string   `json:"method"` // of org.fedoraproject.FirewallD1.zone, firewalld.dbus(5)
	Zone    string   `json:"zone"`
	Sources []string `json:"sources"` // none: only whether firewalld can be asked
}

// Answer is firewalld's.
type Answer struct {
	Error string `json:"error,omitempty"`
	Yes   bool   `json:"yes,omitempty"` // of a query
}

// ErrorCodes are the errors of Job that keep their identity.
func ErrorCodes() helperproc.ErrorCodes {
	return helperproc.ErrorCodes{"unusable": netfilter.ErrUnusable}
}

// Client puts addresses into a zone. Only the
// runtime configuration is changed: pods do not survive a reboot either. A
// reload of firewalld forgets them, which CHECK notices.
type Client struct{ helper helperproc.Program }

// Name returns what records call it.
func (Client) Name() string { return netfilter.NameFirewalld }

// Usable reports why firewalld cannot be asked.
func (c Client) Usable(ctx context.Context) error {
	return c.each(ctx, "", "", nil, nil)
}

// MayRun saves most nodes the question whether firewalld runs: it is installed here, and has a system bus.
func MayRun() bool {
	for _, program := range []string{"/usr/sbin/firewalld", "/usr/bin/firewalld"} { // one directory on some distributions
		if _, err := os.Stat(program); err == nil {
			return busThere()
		}
	}
	return false
}

// busThere saves most nodes the helper's start: without a system bus there is no firewalld.
func busThere() bool {
	if os.Getenv("DBUS_SYSTEM_BUS_ADDRESS") != "" {
		return true
	}
	_, err := os.Stat("/var/run/dbus/system_bus_socket")
	return err == nil
}

// each calls a method with the zone and each address in turn.
func (c Client) each(ctx context.Context, method, zone string, addrs []netip.Addr, done func(netip.Addr, Answer) error) error {
	if !busThere() {
		return fmt.Errorf("%w: no system bus", netfilter.ErrUnusable)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	calls := Calls{Method: method, Zone: zoneOf(zone)}
	for _, a := range addrs {
		calls.Sources = append(calls.Sources, netip.PrefixFrom(a, a.BitLen()).String())
	}
	var answers []Answer
	err := c.helper.Call(ctx, Job, calls, &answers, nil, ErrorCodes())
	if errors.Is(err, helperproc.ErrMissing) {
		err = fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
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
func (c Client) Add(ctx context.Context, zone string, addrs []netip.Addr) error {
	return c.each(ctx, "addSource", zone, addrs, func(a netip.Addr, r Answer) error {
		if r.Error == "" || strings.Contains(r.Error, "ALREADY_SET") {
			return nil
		}
		return fmt.Errorf("put %s into the zone %s: %s", a, zoneOf(zone), r.Error)
	})
}

// Del takes the addresses out of the zone. Missing is success, and so is a node
// where firewalld does not run: what it knew is gone with it.
func (c Client) Del(ctx context.Context, zone string, addrs []netip.Addr) error {
	err := c.each(ctx, "removeSource", zone, addrs, func(a netip.Addr, r Answer) error {
		if r.Error == "" || strings.Contains(r.Error, "NOT_ENABLED") || strings.Contains(r.Error, "UNKNOWN_SOURCE") {
			return nil
		}
		return fmt.Errorf("take %s out of the zone %s: %s", a, zoneOf(zone), r.Error)
	})
	if errors.Is(err, netfilter.ErrUnusable) {
		return nil
	}
	return err
}

// Check asks firewalld for each address, and believes its answer.
func (c Client) Check(ctx context.Context, zone string, addrs []netip.Addr) error {
	return c.each(ctx, "querySource", zone, addrs, func(a netip.Addr, r Answer) error {
		if r.Error != "" {
			return fmt.Errorf("ask for %s in the zone %s: %s", a, zoneOf(zone), r.Error)
		}
		if !r.Yes {
			return fmt.Errorf("%w: %s is not in the zone %s", netfilter.ErrDiffers, a, zoneOf(zone))
		}
		return nil
	})
}
