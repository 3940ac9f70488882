// SPDX-License-Identifier: Apache-2.0

// Package bus talks with firewalld on the system bus, in the helper: the process
// that has the library for it. It does what firewalld.Client asks for.
package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/firewalld"
)

// The D-Bus interface of firewalld, firewalld.dbus(5).
const (
	name = "org.fedoraproject.FirewallD1"
	path = "/org/fedoraproject/FirewallD1"
	zone = name + ".zone."
)

// Jobs are what firewalld.Client asks for.
func Jobs() map[string]helperproc.Job {
	return map[string]helperproc.Job{firewalld.Job: {
		ErrorCodes: firewalld.ErrorCodes(),
		Do: func(ctx context.Context, in json.RawMessage) (any, error) {
			var calls firewalld.Calls
			if err := json.Unmarshal(in, &calls); err != nil {
				return nil, err
			}
			return Call(ctx, calls)
		},
	}}
}

// Call makes the calls one after the other. The error wraps netfilter.ErrUnusable where firewalld cannot be asked.
func Call(ctx context.Context, calls firewalld.Calls) ([]firewalld.Answer, error) {
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answers := make([]firewalld.Answer, 0, len(calls.Sources))
	for _, source := range calls.Sources {
		call := conn.Object(name, path).CallWithContext(ctx, zone+calls.Method, 0, calls.Zone, source)
		var a firewalld.Answer
		if call.Err != nil {
			a.Error = call.Err.Error()
		} else if len(call.Body) > 0 {
			a.Yes, _ = call.Body[0].(bool)
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// connect returns the bus, with firewalld on it.
func connect(ctx context.Context) (*dbus.Conn, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%w: no system bus: %w", netfilter.ErrUnusable, err)
	}
	var owner string
	err = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetNameOwner", 0, name).Store(&owner)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: firewalld is not running: %w", netfilter.ErrUnusable, err), conn.Close())
	}
	return conn, nil
}
