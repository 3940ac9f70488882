// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/ui"
)

const (
	uiAddress     = "127.0.0.1:9880"
	uiInterval    = 2 * time.Second
	uiMinInterval = 200 * time.Millisecond
)

func newUI(a *app) *cobra.Command {
	var listen string
	var interval time.Duration
	c := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page about this node on a loopback address, until interrupted",
		Long: `Serve a page about this node on a loopback address, until interrupted.

The page shows what the other commands print: the backend, pods and their
traffic, connections and a map of them, drops, host ports, rules, limits, maps
and the doctor. It changes nothing. The files are in this program, so it works
without a network. Open the URL that is printed: it has a token, without which
nobody gets an answer. Addresses that others can reach are refused. From another
machine use a tunnel.

The node is looked at while a browser asks, once in --interval for all of them.`,
		Example: `  sluice ui
  sluice ui --listen [::1]:8080 --interval 5s
  ssh -t -L 9880:127.0.0.1:9880 root@node sluice ui`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("output") {
				return fmt.Errorf("--output %s: ui prints the address of a page only", a.output)
			}
			if interval < uiMinInterval {
				return fmt.Errorf("--interval %s: must be at least %s", interval, uiMinInterval)
			}
			s, err := ui.New(listen, interval, &uiSource{a: a, names: podNames{node: a.node}})
			if err != nil {
				return fmt.Errorf("--listen %w", err)
			}
			defer s.Close()
			if err := s.Check(c.Context()); err != nil {
				return err
			}
			if err := a.say("%s", s.URL()); err != nil {
				return err
			}
			return s.Run(c.Context())
		},
	}
	c.Flags().StringVar(&listen, "listen", uiAddress, "serve on this loopback `address` and port; port 0 takes a free one")
	c.Flags().DurationVar(&interval, "interval", uiInterval, "look at the node at most once in this `time`")
	return c
}

// uiSource looks at the node for the page.
type uiSource struct {
	a     *app
	names podNames // looks come one after the other
}

func (s *uiSource) Look(ctx context.Context) (ui.Look, error) { return s.a.lookForUI(ctx, &s.names) }

func (s *uiSource) Doctor(ctx context.Context) (any, error) {
	facts, err := s.a.ops.Facts(ctx)
	if err != nil {
		return nil, err
	}
	return newDoctorView(doctor.Examine(facts)), nil
}
