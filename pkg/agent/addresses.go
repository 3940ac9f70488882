// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// watchAddresses tells changed of each change of the node's addresses, until ctx ends. hostPorts answer at them, and the datapath
// learns of a change by "sluice resync" only. An address that moved to another node is answered here until then, for processes of
// this node.
func (a *agent) watchAddresses(ctx context.Context) {
	var f follower
	for ctx.Err() == nil {
		err := f.follow(ctx, func() {
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

// follower knows the node's addresses: those that it found at its last look.
type follower struct{ known map[netip.Addr]bool }

// follow calls changed when the set of the node's addresses is another one, until ctx ends or the kernel's events are lost: they are too
// many then, and a later call finds what has changed. A gateway address that several devices of pods have is one address, and link-local
// ones are of no interest: a pod that comes or goes changes nothing.
func (f *follower) follow(ctx context.Context, changed func()) error {
	ctx, stop := context.WithCancel(ctx)
	var lost error
	events := make(chan netlink.AddrUpdate, 64)
	err := netlink.AddrSubscribeWithOptions(events, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: func(err error) { lost = err }})
	if err != nil {
		stop()
		return fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	defer func() {
		stop()
		for range events { // the library sends until it has ended
		}
	}()
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	for more := true; more; {
		if err := f.look(h, changed); err != nil {
			return err
		}
		_, more = <-events
		for len(events) > 0 { // one look for all of them
			<-events
		}
	}
	return cmp.Or(ctx.Err(), lost)
}

func (f *follower) look(h *rtnl.Handle, changed func()) error {
	all, err := h.Addrs(rtnl.FamilyAll)
	if err != nil {
		return err
	}
	now := map[netip.Addr]bool{}
	for _, x := range all {
		if a := x.Prefix.Addr(); !a.IsLinkLocalUnicast() && !a.IsLoopback() && !x.Tentative() && !x.DADFailed() {
			now[a] = true
		}
	}
	if f.known != nil && !maps.Equal(f.known, now) {
		changed()
	}
	f.known = now
	return nil
}
