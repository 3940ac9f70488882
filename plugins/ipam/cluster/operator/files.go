// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// requests returns a request for each pool that the node has a file of.
func (o *Tool) requests(ctx context.Context) ([]*claims.Request, error) {
	names, err := blocks.Pools(o.Dir, o.Store.Place())
	var out []*claims.Request
	for _, name := range names {
		f, oerr := blocks.Open(ctx, o.Dir, o.Store.Place(), name)
		if oerr != nil {
			err = errors.Join(err, oerr)
			continue
		}
		if f.CIDR.IsValid() {
			out = append(out, &claims.Request{Pool: name, Network: f.Network, Range: *whole(f.CIDR), BlockSize: 1, Overlapping: true})
		}
		f.Close()
	}
	return out, err
}

// ReleaseUnused gives back what this node does not use, and what waits for the store.
func (o *Tool) ReleaseUnused(ctx context.Context) error {
	list, err := o.requests(ctx)
	for _, q := range list {
		err = errors.Join(err, o.Claimer.Forget(ctx, q), o.Claimer.TakeUp(ctx, q), o.Claimer.Release(ctx, q))
	}
	return err
}

// Export gives this node's addresses back to whereabouts: what is unused is free, and an address in use becomes an
// allocation of its pod. It is for a node that goes back to whereabouts.
func (o *Tool) Export(ctx context.Context) (int, error) {
	if err := o.ReleaseUnused(ctx); err != nil {
		return 0, err
	}
	list, err := o.requests(ctx)
	n := 0
	for _, q := range list {
		m, eerr := o.Claimer.Export(ctx, q)
		n, err = n+m, errors.Join(err, eerr)
	}
	return n, err
}

// Import takes over what whereabouts allocated for pods of this node. whereabouts' reconciler leaves it alone then.
func (o *Tool) Import(ctx context.Context, network string) (int, error) {
	if o.Cluster == nil {
		return 0, errors.New("only Kubernetes tells which pods are on this node")
	}
	node, err := o.Store.NodeName(ctx, o.Node)
	if err != nil {
		return 0, err
	}
	if node == "" {
		return 0, fmt.Errorf("no Node object reports the boot of this machine, so its pods are not known")
	}
	pods, err := o.Cluster.Pods(ctx)
	if err != nil {
		return 0, err
	}
	here := map[string]bool{}
	for _, p := range pods {
		here[p.Ref] = !p.Ended && p.Node == node
	}
	list, err := o.Store.List(ctx)
	n := 0
	for i := range list {
		taken, prefix, perr := parse(&list[i])
		if perr != nil {
			err = errors.Join(err, perr)
			continue
		}
		some := false
		for _, e := range taken {
			some = some || e.PodRef != "" && here[e.PodRef]
		}
		if !some || pool.Name(network, "", list[i].Range) != list[i].Name {
			continue
		}
		q := &claims.Request{Pool: list[i].Name, Network: network, Range: *whole(prefix), BlockSize: 1, Overlapping: true}
		m, ierr := o.Claimer.Import(ctx, q, func(e pool.Entry) bool { return e.PodRef != "" && here[e.PodRef] })
		n, err = n+m, errors.Join(err, ierr)
	}
	// An import that was killed left reservations, too.
	mine, rerr := o.requests(ctx)
	err = errors.Join(err, rerr)
	for _, q := range mine {
		if terr := o.Claimer.TakeUp(ctx, q); terr != nil {
			err = errors.Join(err, terr)
			continue
		}
		err = errors.Join(err, o.Claimer.Unreserve(ctx, q))
	}
	return n, err
}
