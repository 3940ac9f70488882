// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/netpol"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// lookForPolicies is how often an agent that enforces no policies asks whether there are any.
const lookForPolicies = 10 * time.Minute

// open opens the datapath.
func (a *agent) open(ctx context.Context) (*loader.Datapath, error) {
	conf, err := nodeconf.Load(a.Config.Paths.On(nodeconf.DefaultPath))
	if err != nil {
		return nil, err
	}
	return loader.OpenExisting(ctx, loader.Options{Config: conf, Log: a.Log})
}

// endPolicies opens the pods of an agent before this one, which enforced policies.
func (a *agent) endPolicies(ctx context.Context) error {
	dp, err := a.open(ctx)
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(dp.EndNetworkPolicy(ctx), dp.Close())
}

// beginTables begins a new generation of the datapath's tables, which replaces the one before.
func (a *agent) beginTables(ctx context.Context) (netpol.Tables, error) {
	dp, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	tables, err := dp.BeginNetworkPolicy(ctx)
	if err != nil {
		return nil, errors.Join(err, dp.Close())
	}
	old := a.datapath
	if a.datapath = dp; old != nil {
		err = old.Close()
	}
	return tables, err
}

// newPolicies returns nil if policies are not enforced.
func (a *agent) newPolicies() *netpol.Controller {
	if !a.Config.NetworkPolicy.Enabled {
		return nil
	}
	return netpol.New(netpol.Options{
		Source: a.client, Node: a.Node, Begin: a.beginTables, Cluster: a.cluster, NodesChanged: a.watcher.Changed(), Report: a.report, Log: a.Log,
	})
}

// cluster returns what policies have to know of the nodes, false while they are not known.
func (a *agent) cluster() (netpol.Cluster, bool) {
	if !a.watcher.Synced() {
		return netpol.Cluster{}, false
	}
	v := a.watcher.View()
	c := netpol.Cluster{PodNetworks: slices.Clone(a.Config.ClusterCIDRs), NodeAddrs: v.External, Services: a.Config.ServiceCIDRs}
	if len(c.Services) == 0 { // any address may be that of a Service
		c.Services = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	for _, n := range append(v.Others, v.Self) {
		c.NodeAddrs = append(c.NodeAddrs, n.InternalIPs...)
		for _, p := range n.PodCIDRs {
			// A tunnel has the first address of the podCIDR, with every overlay that Sluice or flannel makes. No pod gets it.
			c.NodeAddrs = append(c.NodeAddrs, p.Addr())
			if !slices.ContainsFunc(a.Config.ClusterCIDRs, func(n netip.Prefix) bool { return n.Bits() <= p.Bits() && n.Contains(p.Addr()) }) {
				c.PodNetworks = append(c.PodNetworks, p)
			}
		}
	}
	return c, true
}

// lookForUnenforced ends what an agent before has enforced, and says that there are policies in a cluster where this node enforces none:
// the API server takes them without a word.
func (a *agent) lookForUnenforced(ctx context.Context) {
	for err := a.endPolicies(ctx); err != nil && ctx.Err() == nil; err = a.endPolicies(ctx) {
		a.Log.Warn("end NetworkPolicy, which is not enabled any more", log.Error(err))
		sleep(ctx, longestRetry)
	}
	wait := rand.N(lookForPolicies / 10) // jitter, so that nodes do not ask at one time
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = lookForPolicies + rand.N(lookForPolicies/10)
		found, err := a.client.Any(ctx, kube.NetworkPolicies)
		a.noteUnenforced(found, err)
	}
}

func (a *agent) noteUnenforced(found bool, err error) {
	const step = "network policies"
	switch {
	case err != nil: // the API server is away, or does not say: nothing is known
		a.Log.Debug("look for network policies", log.Error(fmt.Errorf("list one: %w", err)))
	case found:
		a.report.Problem(step, report.NetworkPolicyNotEnforced,
			"the cluster has NetworkPolicy objects, and networkPolicy.enabled is false: all traffic of this node's pods passes")
	default:
		a.report.Clear(step)
	}
}
