// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// doneView is what commands that change something print as JSON.
type doneView struct {
	Done   bool   `json:"done"`
	Loaded bool   `json:"loaded"` // before the command
	Text   string `json:"text"`
}

func newResync(a *app) *cobra.Command {
	var load bool
	var await string
	c := &cobra.Command{
		Use:   "resync",
		Short: "Bring node addresses, uplinks and the node's configuration up to date",
		Long: `Bring the node's addresses, its uplinks and the reserved ports up to date, and
what /etc/sluice/config.json says.

Every ADD does the same. Run it after the node got or lost an address or a
device, or after a change of the file, while no pod is added. "sluice doctor"
says whether it is needed for addresses and devices.

The first ADD after a boot also loads the programs. With --load this command
does it instead, and that ADD takes as long as any other. A node that cannot
run the programs stays as it is.

It fails if the pins were lost, as by an umount of the bpffs, while pods use
them: only an ADD brings back what these pods had.

With --await it waits first, half a minute at most, until that device has an
address. The unit sluice-resync@.service does so for each bridge that somebody
makes: containers and virtual machines behind it then reach published ports.`,
		Example: `  sluice resync
  sluice resync --load
  sluice resync --await docker0`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if await != "" {
				if err := awaitAddress(c.Context(), await); err != nil {
					return err
				}
			}
			return a.withDatapath(c.Context(), func(pinned loader.Interface) error {
				// As an ADD does: the programs are loaded again if the configuration has changed.
				err := a.loadAndSync(c.Context())
				if errors.Is(err, loader.ErrUnavailable) { // such as by the node's backend: pods from before still need what is loaded
					err = pinned.Sync(c.Context())
				}
				if err = errors.Join(err, a.checkServed(c.Context())); err != nil {
					return err
				}
				return a.done(doneView{Done: true, Loaded: true, Text: "Node addresses, uplinks, reserved ports and configuration are up to date."})
			}, func() error {
				if !load {
					if err := a.checkServed(c.Context()); err != nil {
						return fmt.Errorf("nothing is loaded, and %w", err)
					}
					return a.done(doneView{Text: notLoaded})
				}
				err := a.loadAndSync(c.Context())
				if errors.Is(err, loader.ErrUnavailable) { // pods get tables
					return a.done(doneView{Text: fmt.Sprintf("Nothing is loaded: %v.", err)})
				}
				if err = errors.Join(err, a.checkServed(c.Context())); err != nil {
					return err
				}
				return a.done(doneView{Done: true, Text: "The programs are loaded, and know the node's addresses, uplinks and reserved ports."})
			})
		},
	}
	c.Flags().BoolVar(&load, "load", false, "load the programs if nothing is loaded, so that the first ADD does not")
	c.Flags().StringVar(&await, "await", "", "wait until the device of that `name` has an address")
	return c
}

// Bounds of awaitAddress.
const (
	awaitTime   = 30 * time.Second
	awaitSettle = 300 * time.Millisecond // until the address of the other family is there too
)

// awaitAddress returns when a device has an address that others can ask for, when it has gone, or after awaitTime.
func awaitAddress(ctx context.Context, device string) error {
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	w, err := rtnl.Subscribe(rtnl.GroupLink, rtnl.GroupAddrV4, rtnl.GroupAddrV6)
	if err != nil {
		return err
	}
	defer w.Close()
	l, err := h.LinkByName(device)
	if err != nil {
		return fmt.Errorf("--await %s: %w", device, err)
	}
	limited, cancel := context.WithTimeout(ctx, awaitTime)
	defer cancel()
	err = w.Wait(limited, l.Index, func() (bool, error) {
		addrs, err := h.AddrsOf(l.Index, unix.AF_UNSPEC)
		if errors.Is(err, rtnl.ErrNotFound) {
			return true, nil
		}
		return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return !a.Prefix.Addr().IsLinkLocalUnicast() }), err
	})
	switch {
	case err == nil:
		pause(ctx, awaitSettle)
	case limited.Err() != nil:
		err = nil
	}
	return errors.Join(err, ctx.Err())
}

// loadAndSync does what an ADD does for the node: it loads the programs if they are not those of this build and configuration, and has them
// know the node's addresses and devices.
func (a *app) loadAndSync(ctx context.Context) error {
	dp, err := a.node.Load(ctx)
	if err != nil {
		return err
	}
	return errors.Join(dp.Sync(ctx), dp.Close())
}

func newUnload(a *app) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "unload",
		Short: "Remove the programs, maps and pins of the datapath",
		Long: `Remove the programs, maps and pins of the datapath from this node.

It refuses while attachments exist, because their published ports, masquerading
and admission would stop. It refuses while the denylist holds a network,
because the list would be lost. --force unloads in both cases. Programs that
other software attached to the same devices stay. The next ADD loads the
datapath again.`,
		Example: `  sluice unload
  sluice unload --force`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				return a.unload(c.Context(), dp, force)
			}, func() error {
				// A load or an unload that was killed, or an operator who removed pins, may have left a part. With attachments the
				// next ADD makes it whole again.
				if records, err := a.node.Records(); force || err == nil && len(records) == 0 {
					if err := a.node.Clear(c.Context()); err != nil {
						return err
					}
				}
				return a.done(doneView{Text: "Nothing is loaded."})
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also while attachments exist, or the denylist holds something")
	return c
}

func (a *app) unload(ctx context.Context, dp loader.Interface, force bool) error {
	if !force {
		records, err := a.node.Records()
		if err != nil {
			return fmt.Errorf("read the attachment records: %w", err)
		}
		endpoints, err := dp.Endpoints(ctx)
		if err != nil {
			return fmt.Errorf("read the endpoints: %w", err)
		}
		if n := max(len(records), len(endpoints)); n > 0 {
			return fmt.Errorf("%s would lose published ports, masquerading and admission; --force unloads anyway",
				plural(n, "attachment"))
		}
		list, err := dp.Deny(ctx)
		if err != nil {
			return fmt.Errorf("read the denylist: %w", err)
		}
		if n := len(list.Entries); n > 0 {
			return fmt.Errorf("the denylist (%s) would be lost; --force unloads anyway", plural(n, "network"))
		}
	}
	if err := dp.Unload(ctx); err != nil {
		return err
	}
	return a.done(doneView{Done: true, Loaded: true, Text: "The datapath is unloaded."})
}

func (a *app) done(v doneView) error {
	return a.print(v, func() error { return a.say("%s", v.Text) })
}
