// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// watchAddresses tells changed of each change of the node's addresses, until ctx ends. hostPorts answer at them, and the datapath
// learns of a change by "sluice resync" only. An address that moved to another node is answered here until then, for processes of
// this node.
func (a *agent) watchAddresses(ctx context.Context) {
	for ctx.Err() == nil {
		err := followAddresses(ctx, func() {
			select {
			case a.addresses <- struct{}{}:
			default: // one is on its way
			}
		})
		if ctx.Err() == nil {
			a.Log.Warn("watch of the node's addresses", log.Error(err))
			sleep(ctx, longestRetry)
		}
	}
}

// followAddresses calls changed when the set of the node's addresses is another one. A gateway address that several devices of pods
// have is one address, and link-local ones are of no interest: a pod that comes or goes changes nothing.
func followAddresses(ctx context.Context, changed func()) error {
	w, err := rtnl.Subscribe(rtnl.GroupAddrV4, rtnl.GroupAddrV6)
	if err != nil {
		return fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	defer w.Close()
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	var known map[netip.Addr]bool
	return w.Wait(ctx, 0, func() (bool, error) {
		all, err := h.Addrs(rtnl.FamilyAll)
		if err != nil {
			return false, err
		}
		now := map[netip.Addr]bool{}
		for _, x := range all {
			if a := x.Prefix.Addr(); !a.IsLinkLocalUnicast() && !a.IsLoopback() && !x.Tentative() && !x.DADFailed() {
				now[a] = true
			}
		}
		if known != nil && !maps.Equal(known, now) {
			changed()
		}
		known = now
		return false, nil
	})
}
