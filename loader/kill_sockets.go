// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/maps/socklb"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// dropPeers destroys the node's own sockets that are connected through entries that are no longer in force: a connected UDP
// socket would send to a dead address for ever, a TCP one wait for it. It must run after the entries have changed, so that
// who connects again gets the new pod. It is best effort: errors are logged, as the ports themselves are right.
//
// A socket that found the old entry and has not been noted when this runs is missed: some instructions wide.
func (d *Datapath) dropPeers(gone []hostport.Entry) {
	if len(gone) == 0 {
		return
	}
	if err := d.destroyPeers(gone); err != nil {
		d.tree.Log.Warn("sockets that are connected to a host port which has gone stay", log.Error(err))
	}
}

func (d *Datapath) destroyPeers(gone []hostport.Entry) error {
	raw, err := d.tree.Pinned(pintree.MapSockLBConn)
	if err != nil {
		return err
	}
	m := socklb.NewConnected(raw)
	type pod struct {
		addr netip.AddrPort
		gen  uint64
	}
	dead := make(map[pod]bool, len(gone))
	for _, e := range gone {
		dead[pod{netip.AddrPortFrom(e.PodIP, e.PodPort), e.Generation}] = true
	}
	type target struct {
		proto uint8
		addr  netip.AddrPort
	}
	cookies := make(map[target]map[uint64]bool)
	err = m.Each(func(cookie uint64, v socklb.Value) bool {
		if dead[pod{v.Pod, v.Gen}] {
			t := target{v.Proto, v.Pod}
			if cookies[t] == nil {
				cookies[t] = make(map[uint64]bool)
			}
			cookies[t][cookie] = true
		}
		return true
	})
	errs := []error{err}
	for t, ours := range cookies {
		sockets, err := rtnl.SocketsTo(t.proto, t.addr)
		errs = append(errs, err)
		for _, s := range sockets {
			if ours[s.Cookie] {
				errs = append(errs, rtnl.DestroySocket(t.proto, s), m.Delete(s.Cookie))
			}
		}
	}
	return errors.Join(errs...)
}
