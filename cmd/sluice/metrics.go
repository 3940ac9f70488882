// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/metrics"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/version"
)

func newMetrics(a *app) *cobra.Command {
	var (
		textfile string
		pods     bool
	)
	c := &cobra.Command{
		Use:   "metrics",
		Short: "Print the node's metrics for Prometheus",
		Long: `Print the node's metrics in the text format of Prometheus.

--textfile writes them to a file instead, for the textfile collector of the node
exporter: run it by a timer on nodes without the agent. The name must end in
".prom". The file is replaced by one rename, so a scrape never sees half of it.

--pods adds five series for each pod device of the eBPF datapath.`,
		Example: `  sluice metrics
  sluice metrics --textfile /var/lib/node_exporter/textfile_collector/sluice.prom`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("output") {
				return fmt.Errorf("--output %s: metrics have the format of Prometheus only", a.output)
			}
			if textfile != "" && filepath.Ext(textfile) != ".prom" {
				return fmt.Errorf("--textfile %q: the name must end in .prom, the node exporter reads no other", textfile)
			}
			n, lerr := a.lookForMetrics(c.Context(), pods)
			if textfile == "" {
				return errors.Join(metrics.Write(quiet{a, a.out}, n), lerr)
			}
			return errors.Join(writeTextfile(textfile, n), lerr)
		},
	}
	c.Flags().StringVar(&textfile, "textfile", "", "write to this `file`, by one rename")
	c.Flags().BoolVar(&pods, "pods", false, "also the traffic and the connections of each pod")
	return c
}

// Parts of a look, as sluice_look_failed names them.
const (
	partDatapath    = "datapath"
	partAttachments = "attachments"
	partNetfilter   = "netfilter"
	partVerbs       = "verbs"
	partIPAM        = "ipam"
)

// lookForMetrics reads the node, with pods each of them too. What cannot be read is left out, counts as failed, and is in the error.
func (a *app) lookForMetrics(ctx context.Context, pods bool) (*metrics.Node, error) {
	n := &metrics.Node{Version: version.String(), Failed: map[string]bool{}}
	var errs []error
	look := func(part string, f func() error) {
		err := f()
		n.Failed[part] = err != nil
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part, err))
		}
	}
	var records []*attachments.Record
	look(partAttachments, func() (err error) {
		if records, err = a.node.Records(); err == nil {
			attachmentMetrics(n, records)
		}
		return err
	})
	var names owners
	if pods {
		names = ownersOf(records)
	}
	look(partDatapath, func() error {
		return a.withDatapath(ctx, func(dp loader.Interface) error { return datapathMetrics(ctx, dp, n, names) }, func() error { return a.decisionMetrics(ctx, n) })
	})
	look(partNetfilter, func() error {
		choices, err := a.node.Choices()
		n.Netfilter = make(map[string]string, len(choices))
		for asked, c := range choices {
			n.Netfilter[asked] = c.Name
		}
		return err
	})
	look(partVerbs, func() (err error) {
		n.Verbs, err = a.node.VerbTimes()
		return err
	})
	look(partIPAM, func() (err error) {
		n.Pools, err = a.node.Pools()
		return err
	})
	return n, errors.Join(errs...)
}

// decisionMetrics says what was decided on a node where nothing is loaded.
func (a *app) decisionMetrics(ctx context.Context, n *metrics.Node) error {
	st, err := a.node.Decision(ctx)
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	n.Backend, n.Reason = st.Backend, st.Reason
	return nil
}

// datapathMetrics reads the datapath, with series of the pods in names if that is not nil.
func datapathMetrics(ctx context.Context, dp loader.Interface, n *metrics.Node, names owners) error {
	var err error
	if n.Drops, err = dp.DropSums(ctx); err != nil {
		return err
	}
	if n.Counts, err = connectionCounts(ctx, dp); err != nil {
		return err
	}
	published, err := dp.HostPorts(ctx)
	if err != nil {
		return err
	}
	n.HostPorts = map[string]int{"tcp": 0, "udp": 0}
	for _, p := range published {
		n.HostPorts[ipproto.Name(p.Proto)]++
	}
	n.Connections = map[metrics.Connections]int{}
	ofOwner, use := map[uint64]int{}, map[string]conntrack.Use{}
	counted := func(yield func(loader.Flow, error) bool) { // one walk of the tables for all
		for f, err := range dp.Flows(ctx, loader.FlowFilter{All: true, Counted: use}) {
			if err == nil {
				n.Connections[metrics.Connections{Kind: f.Kind, State: f.State}]++
				ofOwner[f.Owner]++
			}
			if (err != nil || f.State != conntrack.StateExpired) && !yield(f, err) {
				return
			}
		}
	}
	nat, err := natPools(counted, 0)
	if err != nil {
		return err
	}
	st, err := dp.StatusCounted(ctx, use)
	if err != nil {
		return err
	}
	n.PortsTotal = portsIn(st.Config.SNATPorts)
	for _, p := range nat {
		n.PortUse = append(n.PortUse, metrics.PortUse{Address: p.Address.String(), Proto: p.Proto, InUse: p.InUse})
	}
	if names != nil {
		n.Pods = podMetrics(st.Endpoints, names, ofOwner)
	}
	n.Backend, n.Reason, n.Status = st.Backend, st.Reason, st // last: with an error nothing of the datapath is told
	return nil
}

// connectionCounts is nil where the programs do not count connections.
func connectionCounts(ctx context.Context, dp loader.Interface) (*conntrack.Counts, error) {
	n, err := dp.ConnectionCounts(ctx)
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil, nil // nothing is known, and nothing is wrong
	}
	return &n, err
}

// podMetrics are the pods with a record. What a datapath still has of others is the matter of "sluice cleanup".
func podMetrics(eps []loader.EndpointStatus, names owners, connections map[uint64]int) []metrics.Pod {
	out := []metrics.Pod{}
	seen := map[uint64]bool{}
	for i := range eps {
		ref, known := names[eps[i].Owner]
		if !known || seen[eps[i].Owner] {
			continue
		}
		seen[eps[i].Owner] = true
		out = append(out, metrics.Pod{
			Network: ref.Network, ContainerID: ref.ContainerID, Interface: ref.IfName, Traffic: eps[i].Stats, Connections: connections[eps[i].Owner],
		})
	}
	return out
}

func attachmentMetrics(n *metrics.Node, records []*attachments.Record) {
	n.Attachments = map[string]int{}
	for _, r := range records {
		n.Attachments[r.Network]++
	}
	n.Attached = map[metrics.Attached]int{}
	for feature, backends := range newUsedBy(records) {
		for backend, count := range backends {
			n.Attached[metrics.Attached{Feature: feature, Backend: backend}] = count
		}
	}
}

func writeTextfile(path string, n *metrics.Node) error {
	var b bytes.Buffer
	if err := metrics.Write(&b, n); err != nil {
		return err
	}
	// The node exporter may be another user.
	if err := file.Write(path, b.Bytes(), file.Options{Temp: ".sluice-*", Mode: 0o644}); err != nil {
		return fmt.Errorf("--textfile: %w", err)
	}
	return nil
}
