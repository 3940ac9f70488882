// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/storeproc"
)

func (l *call) pod() claims.Pod {
	return claims.Pod{
		Namespace: l.c.PodNamespace, Name: l.c.PodName, UID: l.c.PodUID, IfName: l.a.IfName, Network: l.c.Name, Claim: l.c.Claim,
	}
}

// owner asks what the addresses of the pod are kept for. Only a network whose configuration allows it asks.
func (l *call) owner(ctx context.Context) (claims.Owner, error) {
	if !l.c.Persistent || len(l.c.Ranges) == 0 {
		return claims.Owner{}, nil
	}
	var o claims.Owner
	err := l.Store.Call(ctx, storeproc.Owner, storeproc.Job{Config: *l.c, Node: l.node, Pod: l.pod()}, &o)
	if errors.Is(err, claims.ErrOwner) {
		return o, cnierr.Wrap(cnierr.CodeConfig, err, "allowPersistentIPs")
	}
	return o, l.coded(nil, err)
}

// keep makes a target one for the owner. An address that its IPAMClaim has is wanted, unless the call wants another one.
func (t *target) keep(o claims.Owner) {
	t.q.Hold = o.Hold
	if t.asked {
		return
	}
	for _, a := range o.IPs {
		if t.q.Range.CIDR.Contains(a) {
			t.q.Wanted = a
		}
	}
}

// bind notes in the IPAMClaim of the owner what the pod has.
func (l *call) bind(ctx context.Context, o claims.Owner, ips []netip.Prefix) error {
	if o.Claim == "" {
		return nil
	}
	return l.coded(nil, l.Store.Call(ctx, storeproc.Bind, storeproc.Job{Config: *l.c, Node: l.node, Pod: l.pod(), Owner: o, IPs: ips}, nil))
}

// held returns the offset that the node has for the owner of the target. Another container of the node that has it is an
// earlier pod: it keeps the address until its DEL.
func (t *target) held(f *blocks.File) (uint64, bool, error) {
	off, ok := f.Held(t.q.Hold)
	u, used := f.Used[off]
	if !ok || !used {
		return off, ok, nil
	}
	return 0, false, cnierr.New(cnierr.CodeTryAgain, fmt.Sprintf("pool %s: container %s interface %s of this node has the address that is kept for the pod, until its DEL",
		f.Pool, u.ContainerID, u.IfName), "")
}
