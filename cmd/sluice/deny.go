// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
)

func newDeny(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "deny",
		Short: "Drop what comes from some networks, before anything sees it",
		Long: `Drop what comes from some networks, before anything else sees it.

The list is for the whole node: an XDP program on every uplink drops what has a
source address in it, also behind VLAN tags, and counts it. It runs in the
device's driver where that can ("native"), else in the stack ("generic"). It is
attached only while the list is not empty, and never displaces somebody else's
XDP program. The list lasts until the next boot, or until "sluice unload --force".`,
		Example: `  sluice deny add 203.0.113.0/24 2001:db8:bad::/48
  sluice deny list
  sluice deny del 203.0.113.0/24`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newDenyAdd(a), newDenyDel(a), newDenyList(a))
	return c
}

func newDenyAdd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "add CIDR...",
		Short:   "Add networks to the list",
		Example: `  sluice deny add 203.0.113.0/24`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			networks, err := networksOf(args)
			if err != nil {
				return err
			}
			dp, err := a.node.Load(c.Context())
			if err != nil {
				return err
			}
			defer dp.Close()
			if err := dp.DenyAdd(c.Context(), networks); err != nil {
				return err
			}
			return a.done(doneView{Done: true, Loaded: true, Text: fmt.Sprintf("Dropping what comes from %s.", joined(networks))})
		},
	}
}

func newDenyDel(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "del CIDR...",
		Short:   "Take networks out of the list",
		Example: `  sluice deny del 203.0.113.0/24`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			networks, err := networksOf(args)
			if err != nil {
				return err
			}
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				if err := dp.DenyDelete(c.Context(), networks); err != nil {
					return err
				}
				return a.done(doneView{Done: true, Loaded: true, Text: fmt.Sprintf("No longer dropping what comes from %s.", joined(networks))})
			}, func() error { return fmt.Errorf("%w: nothing is loaded", loader.ErrNotDenied) })
		},
	}
}

func newDenyList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Show the list, and how it is in force on each uplink",
		Example: `  sluice deny list -o json`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			empty := &loader.DenyStatus{Entries: []loader.DenyEntry{}, Devices: []loader.DenyDevice{}}
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				s, err := dp.Deny(c.Context())
				if err != nil {
					return fmt.Errorf("read the denylist: %w", err)
				}
				return a.print(s, func() error { return a.denyTable(s) })
			}, func() error { return a.nothing(empty) })
		},
	}
}

func (a *app) denyTable(s *loader.DenyStatus) error {
	if len(s.Entries) == 0 {
		return a.say("The denylist is empty, and its program attached nowhere.")
	}
	t := table{columns: []column{{name: "NETWORK"}, {name: "DROPPED", align: right}}}
	for _, e := range s.Entries {
		t.add(e.Network.String(), countText(e.Packets))
	}
	if err := a.table(&t); err != nil {
		return err
	}
	for _, d := range s.Devices {
		text := d.Mode
		if d.Why != "" {
			text += ": " + d.Why
		}
		if err := a.field(d.Name, text, func(s string) string { return s }); err != nil {
			return err
		}
	}
	return nil
}

// networksOf reads networks and single addresses.
func networksOf(args []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(args))
	for _, s := range args {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			a = a.Unmap()
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil || p.Addr().Is4In6():
			return nil, fmt.Errorf("%q is neither an address nor a network", s)
		case p != p.Masked():
			return nil, fmt.Errorf("%q has bits beyond its length: did you mean %s?", s, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

const maxJoined = 8

// joined lists networks for a line of text, or counts them where the line would be too long to read.
func joined(networks []netip.Prefix) string {
	if len(networks) > maxJoined {
		return fmt.Sprintf("%d networks", len(networks))
	}
	s := make([]string, 0, len(networks))
	for _, p := range networks {
		s = append(s, p.String())
	}
	return strings.Join(s, ", ")
}
