// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// makeBridge makes the bridge or brings an existing one into service. An
// existing one keeps its MTU and VLAN filtering: others may depend on them.
func (t *attach) makeBridge(context.Context) error {
	if t.bridge.Index == 0 {
		if err := t.newBridge(); err != nil {
			return err
		}
	}
	if t.vlanAware() && !t.bridge.VLANFiltering {
		t.args.Log.Warn("the existing bridge does not filter VLANs", log.String(log.KeyDevice, t.Bridge))
	}
	if t.PromiscMode && !t.bridge.Promisc {
		if err := t.Host.SetPromisc(t.bridge.Index, true); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "set promiscuous mode on %s", t.Bridge)
		}
		index := t.bridge.Index
		t.rb.Push("promiscuous mode of "+t.Bridge, func(context.Context) error { return gone(t.Host.SetPromisc(index, false)) })
	}
	if !t.bridge.Up {
		if err := t.Host.SetUp(t.bridge.Index); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "set %s up", t.Bridge)
		}
	}
	veth.NoRA(t.args.Log, t.bridge)
	return nil
}

// newBridge makes it with an address of its own: one that follows the ports
// would change under the pods' neighbour entries whenever a pod comes or goes.
func (t *attach) newBridge() error {
	err := t.Host.AddBridge(rtnl.BridgeSpec{Name: t.Bridge, MTU: t.MTU, MAC: veth.RandomMAC(), VLANFiltering: t.vlanAware(), Up: true})
	switch {
	case errors.Is(err, rtnl.ErrNotSupported) && t.vlanAware():
		return vlanError(err)
	case errors.Is(err, rtnl.ErrExist): // another ADD was faster: its bridge is as good
	case err != nil:
		return cnierr.Wrap(cnierr.CodeKernel, err, "make the bridge")
	default:
		t.rb.Push("bridge "+t.Bridge, t.removeBridge)
		t.madeBridge = true
		veth.NoDAD(t.args.Log, t.Bridge)
	}
	if t.bridge, err = t.Host.LinkByName(t.Bridge); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up the bridge")
	}
	if t.bridge.Kind != "bridge" {
		return notABridge(t.bridge)
	}
	return nil
}

// removeBridge undoes newBridge unless another pod has joined since.
func (t *attach) removeBridge(context.Context) error {
	br, err := t.Host.LinkByName(t.Bridge)
	if err != nil || br.Kind != "bridge" {
		return gone(err)
	}
	ports, err := t.Host.LinksOf(br.Index)
	if err != nil || len(ports) > 0 {
		return err
	}
	return gone(t.Host.DelLink(br.Index))
}

// makeVeth makes the pair, in place, with one message. The host veth is a port
// of the bridge and up. The pod's end begins inside its namespace.
func (t *attach) makeVeth(context.Context) error {
	save := func() error { return t.p.record(t.ref).Write(t.args.Netns, t.rec) }
	err := t.rec.Make(t.ref, t.addVeth, save, func() error { return t.EnsureIfNameFree(t.args.IfName) })
	if err != nil {
		return err
	}
	t.rb.Push("veth "+t.rec.HostIfName, func(context.Context) error { return t.rec.Remove(t.Host) })
	if t.hostEnd, t.podEnd, err = t.rec.Ends(t.Host, t.Pod, t.args.IfName); err != nil {
		return err
	}
	veth.NoRA(t.args.Log, t.hostEnd)
	veth.NoLinkLocal(t.Host, t.args.Log, t.hostEnd) // a bridge port receives no packets of its own
	return t.SetBigTCP(t.Host, t.Pod, t.args.Log, t.hostEnd, t.podEnd)
}

// addVeth sends the message. When the bridge went away between the look and
// the message, because another ADD that made it failed, it is made again once.
func (t *attach) addVeth() error {
	spec := rtnl.VethSpec{
		HostName: t.rec.HostIfName, HostMAC: t.rec.MAC(), Master: t.bridge.Index, HostUp: true,
		PeerName: t.args.IfName, PeerMAC: t.mac, PeerNS: t.NS.Fd(), MTU: t.MTU,
	}
	err := t.rec.AddPair(t.Host, t.PairConf, t.args.Log, spec)
	if err == nil || errors.Is(err, rtnl.ErrExist) {
		return err
	}
	if _, gone := t.Host.LinkByIndex(t.bridge.Index); !errors.Is(gone, rtnl.ErrNotFound) {
		return err
	}
	t.bridge = rtnl.Link{}
	if err := t.makeBridge(context.Background()); err != nil {
		return err
	}
	spec.Master = t.bridge.Index
	return t.rec.AddPair(t.Host, t.PairConf, t.args.Log, spec)
}

// setPort sets what differs from a new port's defaults.
func (t *attach) setPort(context.Context) error {
	if t.HairpinMode || t.PortIsolation {
		want := rtnl.Port{Hairpin: t.HairpinMode, Isolated: t.PortIsolation}
		if err := t.Host.SetPort(t.hostEnd.Index, want); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "set hairpinMode and portIsolation")
		}
	}
	return t.setVLANs(t.Host, t.hostEnd.Index, t.VLAN, t.trunk)
}

// waitUp returns when the host end carries frames, with what the link is like.
func (t *attach) waitUp(ctx context.Context) (err error) {
	if t.DisableContainerIf { // it never will
		t.hostEnd, err = t.Host.LinkByIndex(t.hostEnd.Index)
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up the host end")
	}
	t.hostEnd, err = veth.WaitUp(ctx, t.Host, t.hostEnd)
	return err
}

// gone takes "there is no such thing" for success.
func gone(err error) error {
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	return err
}
