// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/uplinks"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Clients on this node use its hostPorts too: a pod without features, a pod of another suite or from before the swap, a virtual machine. What they
// send comes in by a bridge of pods, or by a device that leads to the one of them. Where that is neither an uplink nor the host veth of an
// endpoint, it gets the programs for clients (docs/dev/design/clients.md).

// attachClients puts the programs on a device. One that cannot have them has lost only what its clients never had: that is no error of
// the ADD which looks.
func (d *Datapath) attachClients(a *attach.Attacher, l rtnl.Link) {
	if err := a.AttachClients(l.Index); err != nil && !errors.Is(err, ErrNoDevice) {
		d.tree.Log.Warn("clients behind a device do not reach hostPorts of this node", log.String("device", l.Name), log.Error(err))
	}
}

// ServeClients puts the programs for clients on the devices of those names, the node's devices of a pod without features, and on the bridges that
// they are ports of. The next look would do it. A device that has gone, or that is none for clients, is success.
func (d *Datapath) ServeClients(ctx context.Context, names []string) error {
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	h, err := a.Netlink()
	if err != nil {
		return err
	}
	var left []rtnl.Link
	for _, name := range names {
		l, ok, err := uplinks.ClientDevice(h, name)
		if err != nil {
			return err
		}
		if !ok || slices.ContainsFunc(left, func(x rtnl.Link) bool { return x.Index == l.Index }) {
			continue
		}
		has, err := a.HasClients(l.Index)
		if err != nil {
			return err
		}
		if !has {
			left = append(left, l)
		}
	}
	if len(left) == 0 {
		return nil
	}
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, l := range left {
		d.attachClients(a, l)
	}
	return nil
}
