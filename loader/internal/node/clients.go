// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Clients on this node use its hostPorts too: a pod without features, a pod of another suite or from before the swap, a virtual machine. What they
// send comes in by a bridge of pods, or by a device that leads to the one of them. Where that is neither an uplink nor the host veth of an
// endpoint, it gets the programs for clients (docs/design/clients.md).

const kindBridge = "bridge"

// addClient notes a device, other than the host veth of an endpoint, that clients may be behind. What is an uplink is found later.
func (v *view) addClient(l rtnl.Link, routed func(index int) bool, has addressing, w wayOut) {
	if l.Kind == kindBridge && has > noAddress || routed(l.Index) || v.leadsToClient(l) && has < inSubnet && !w.nets {
		v.clients = append(v.clients, l)
	}
}

// leadsToClient says of a device, other than a bridge, that one client is behind it: a pod, or a virtual machine.
func (v *view) leadsToClient(l rtnl.Link) bool {
	if !leadsToPod(l) && (l.Kind != "tun" || !l.Ethernet) {
		return false
	}
	return l.MasterIndex == 0 || v.known[l.MasterIndex].Kind == "vrf" // a port is the bridge's concern
}

// writeClients puts the programs on the devices that a look has seen. One that cannot have them has lost only what its clients never had: that is
// no error of the ADD which looks.
func (node Node) writeClients(a *attach.Attacher, v *view, n *node) {
	for _, l := range v.clients {
		if _, ok := n.uplinks[l.Index]; !ok {
			node.attachClients(a, l)
		}
	}
}

func (node Node) attachClients(a *attach.Attacher, l rtnl.Link) {
	if err := a.AttachClients(l.Index); err != nil && !errors.Is(err, pintree.ErrNoDevice) {
		node.Log.Warn("clients behind a device do not reach hostPorts of this node", log.String("device", l.Name), log.Error(err))
	}
}

// ServeClients puts the programs for clients on the devices of those names, the node's devices of a pod without features, and on the bridges that
// they are ports of. The next look would do it. A device that has gone, or that is none for clients, is success.
func (node Node) ServeClients(ctx context.Context, names []string) error {
	a := attach.NewAttacher(node.Tree, "")
	defer a.Close()
	h, err := a.Netlink()
	if err != nil {
		return err
	}
	var left []rtnl.Link
	for _, name := range names {
		l, ok, err := clientBy(h, name)
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
	unlock, err := node.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, l := range left {
		node.attachClients(a, l)
	}
	return nil
}

// clientBy returns the device by which a client comes that the device of that name leads to.
func clientBy(h links, name string) (l rtnl.Link, ok bool, err error) {
	v := &view{h: h, known: make(map[int]rtnl.Link)}
	l, err = h.LinkByName(name)
	if err == nil && l.MasterIndex != 0 {
		var master rtnl.Link
		if master, err = linkOf(h, v.known, l.MasterIndex); err == nil && master.Kind == kindBridge {
			return master, true, nil
		}
	}
	if errors.Is(err, rtnl.ErrNotFound) {
		return l, false, nil
	}
	return l, err == nil && (l.Kind == kindBridge || v.leadsToClient(l)), err
}
