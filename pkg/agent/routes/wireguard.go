// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// overheadWG is what WireGuard adds over IPv6: IP, UDP and its own header and tag. Padding fits into the MTU.
const overheadWG = 40 + 8 + 32

const (
	// keepalive makes the kernel try a handshake until there was one.
	keepalive = 25 * time.Second
	// recheck is the time after which a node is looked at that is not on the active lane yet.
	recheck = 10 * time.Second
	// longestWait bounds Again, for a clock that jumps.
	longestWait = time.Hour
)

// wireGuard sends to other nodes by two WireGuard devices with a key each. Every node receives on both at any time, and sends by
// the active one as soon as it has seen a handshake there. So a key is exchanged while no node sends by it.
type wireGuard struct {
	base
	nl        *netlink.Handle
	wg        *wgctrl.Client
	keys      *keyPair
	now       func() time.Time
	endpoints map[wgtypes.Key]string // as set, since the kernel follows a peer that moves
	owners    map[wgtypes.Key]string
}

// wgPeer is another node as a peer of both devices.
type wgPeer struct {
	node     Node
	cidrs    []netip.Prefix
	endpoint netip.Addr
	peerKeys
	healthy [lanes]bool // there was a handshake with the keys that both have now
}

func (r *wireGuard) device(lane int) string {
	if lane == 0 {
		return r.cfg.WireGuard.Device
	}
	return r.cfg.WireGuard.Device + "1"
}

// MTU leaves room for the headers over either family: nodes may have both.
func (r *wireGuard) MTU(uplink int) int { return uplink - overheadWG }

func (r *wireGuard) Sync(_ context.Context, self Node, others []Node) (w Wanted, err error) {
	w = Wanted{SelfAnnotations: annotations(ModeWireGuard, self)}
	defer func(n int) { w.Resync = r.devices != n }(r.devices)
	now := r.now()
	if err := r.open(now); err != nil {
		return w, err
	}
	links, err := r.ensureDevices(self)
	if err != nil {
		return w, err
	}
	t, err := r.readTable()
	if err != nil {
		return w, err
	}
	nodes, errs := checkFacts(&r.cfg, self, others)
	have, err := r.peersOf()
	if err != nil {
		return w, errors.Join(append(errs, err)...)
	}
	peers, bad := r.plan(t, self, nodes, have)
	errs = append(errs, bad...)

	active := activeLane(now, r.cfg.WireGuard.KeyRotation)
	var want []wantedRoute
	late := 0
	for _, p := range peers {
		lane := active
		if !p.healthy[active] && p.healthy[1-active] {
			lane = 1 - active
			late++
		}
		for _, c := range p.cidrs {
			want = append(want, wantedRoute{p.node.Name, routeTo(c, netip.Addr{}, links[lane])})
		}
	}
	// A peer comes before its routes, and goes after them.
	for lane := range lanes {
		errs = append(errs, r.setPeers(lane, peers, have[lane], false))
	}
	errs = append(errs, r.setRoutes(t, want)...)
	for lane := range lanes {
		errs = append(errs, r.setPeers(lane, peers, have[lane], true))
	}
	again := min(nextStep(now, r.cfg.WireGuard.KeyRotation), longestWait)
	if late > 0 {
		again = min(again, recheck)
	}
	if r.keys.staleKey(now, r.cfg.WireGuard.KeyRotation) {
		errs = append(errs, r.renew(now, late > 0, peers))
	}
	w.Again = max(again, time.Second)
	value, err := r.keys.annotation(r.cfg.WireGuard.Port)
	w.SelfAnnotations[AnnotationWireGuard] = value
	return w, errors.Join(append(errs, err, r.sweep(r.device(0), r.device(1)))...)
}

func (r *wireGuard) open(now time.Time) (err error) {
	if err := r.base.open(); err != nil {
		return err
	}
	if r.nl == nil {
		if r.nl, err = netlink.NewHandle(); err != nil {
			return err
		}
	}
	if r.keys == nil {
		r.keys, err = loadKeys(r.cfg.StateDir, now)
	}
	return err
}

// ensureDevices returns the links of both lanes.
func (r *wireGuard) ensureDevices(self Node) (links [lanes]int, err error) {
	v4 := len(self.InternalIPs) > 0 && self.InternalIPs[0].Is4()
	_, uplink, err := r.uplinkOf(self, v4)
	if err != nil {
		return links, err
	}
	for lane := range lanes {
		if links[lane], err = r.ensureDevice(lane, uplink.MTU-overheadWG); err != nil {
			return links, fmt.Errorf("device %s: %w", r.device(lane), err)
		}
		for _, p := range self.PodCIDRs { // the source of what the node itself sends, inside of what its peers let it send
			if p == firstCIDR(self, p.Addr().Is4()) {
				if err := r.setAddress(links[lane], netip.PrefixFrom(p.Addr(), p.Addr().BitLen())); err != nil {
					return links, err
				}
			}
		}
	}
	return links, nil
}

func (r *wireGuard) ensureDevice(lane, mtu int) (int, error) {
	name, alias, up := r.device(lane), aliasPrefix+ModeWireGuard, true
	l, err := r.h.LinkByName(name)
	switch {
	case errors.Is(err, rtnl.ErrNotFound):
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := r.nl.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
			return 0, err
		}
		r.changes++
		// A node may receive by one lane what it answers by the other one. WireGuard itself checks the sources (AllowedIPs).
		if err := sysctl.Set("net/ipv4/conf/"+name+"/rp_filter", "2"); err != nil {
			return 0, err
		}
		if l, err = r.h.LinkByName(name); err != nil {
			return 0, err
		}
	case err != nil:
		return 0, err
	case l.Kind != "wireguard":
		return 0, fmt.Errorf("it is of type %q; remove it, or set another wireguard.device", l.Kind)
	}
	if r.wg == nil { // not before there is a device: that loads the module
		if r.wg, err = wgctrl.New(); err != nil {
			return 0, err
		}
	}
	if !isOurs(l) { // one without a key is of a process that was killed before it gave it the alias
		d, err := r.wg.Device(name)
		if err != nil {
			return 0, err
		}
		if l.Alias != "" || d.PrivateKey != (wgtypes.Key{}) {
			return 0, errors.New("it is there and not Sluice's; remove it, or set another wireguard.device")
		}
	}
	if l.Alias != alias || l.MTU != mtu {
		if err := r.h.SetLink(l.Index, rtnl.LinkChange{Alias: &alias, MTU: &mtu}); err != nil {
			return 0, err
		}
		r.changes++
	}
	if err := r.setKey(lane, false); err != nil {
		return 0, err
	}
	if !l.Up {
		r.changes++
		r.devices++
		return l.Index, r.h.SetLink(l.Index, rtnl.LinkChange{Up: &up})
	}
	return l.Index, nil
}

// setKey gives a device the key of its lane. With another key, all peers are made anew: what the kernel knows of handshakes
// belongs to the key of before.
func (r *wireGuard) setKey(lane int, renewed bool) error {
	port, key := r.cfg.WireGuard.Port+lane, r.keys.Keys[lane].key
	if !renewed {
		d, err := r.wg.Device(r.device(lane))
		if err != nil {
			return err
		}
		if d.PrivateKey == key && d.ListenPort == port {
			return nil
		}
	}
	r.changes++
	return r.wg.ConfigureDevice(r.device(lane), wgtypes.Config{PrivateKey: &key, ListenPort: &port, ReplacePeers: true})
}

// renew gives the idle lane its next key. A node that can be reached by that lane only has a quarter of the period more.
func (r *wireGuard) renew(now time.Time, inUse bool, peers []*wgPeer) error {
	rotation := r.cfg.WireGuard.KeyRotation
	if inUse && now.Sub(periodStart(now, rotation)) < rotation*3/4 {
		return nil
	}
	lane := 1 - activeLane(now, rotation)
	fresh, err := newKey(now)
	if err != nil {
		return err
	}
	old := r.keys.Keys[lane]
	r.keys.Keys[lane] = fresh
	if err := r.keys.save(r.cfg.StateDir); err != nil {
		r.keys.Keys[lane] = old
		return fmt.Errorf("keep the next WireGuard key: %w", err)
	}
	r.log.Info("made a new WireGuard key", log.String(log.KeyDevice, r.device(lane)))
	if err := r.setKey(lane, true); err != nil {
		return err
	}
	return r.setPeers(lane, peers, nil, false)
}

// peersOf returns what both devices have, by key.
func (r *wireGuard) peersOf() (have [lanes]map[wgtypes.Key]wgtypes.Peer, err error) {
	for lane := range lanes {
		d, err := r.wg.Device(r.device(lane))
		if err != nil {
			return have, err
		}
		have[lane] = make(map[wgtypes.Key]wgtypes.Peer, len(d.Peers))
		for _, p := range d.Peers {
			have[lane][p.PublicKey] = p
		}
	}
	return have, nil
}

// plan returns the nodes that can be peers.
func (r *wireGuard) plan(t *table, self Node, nodes []Node, have [lanes]map[wgtypes.Key]wgtypes.Peer) (_ []*wgPeer, errs []error) {
	v4 := len(self.InternalIPs) > 0 && self.InternalIPs[0].Is4()
	byKey := map[wgtypes.Key][]*wgPeer{}
	var claimed []*wgPeer
	for _, n := range nodes {
		if len(n.PodCIDRs) == 0 {
			continue
		}
		keys, err := readKeys(n)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p := &wgPeer{node: n, peerKeys: keys, endpoint: firstOf(n.InternalIPs, v4)}
		if !p.endpoint.IsValid() {
			p.endpoint = firstOf(n.InternalIPs, !v4)
		}
		if !p.endpoint.IsValid() {
			errs = append(errs, &NodeError{n.Name, "InternalIP: the node has none that can be used"})
			continue
		}
		if p.keys[0] == p.keys[1] {
			errs = append(errs, &NodeError{n.Name, fmt.Sprintf("annotation %s: both keys are one; the node needs two", AnnotationWireGuard)})
			continue
		}
		if slices.ContainsFunc(r.keys.Keys[:], func(k ownKey) bool { return slices.Contains(p.keys[:], k.key.PublicKey()) }) {
			errs = append(errs, &NodeError{n.Name, fmt.Sprintf("annotation %s: this node has that key", AnnotationWireGuard)})
			continue
		}
		var bad []error
		p.cidrs, bad = r.usable(t, n)
		errs = append(errs, bad...)
		claimed = append(claimed, p)
		for _, k := range p.keys {
			byKey[k] = append(byKey[k], p)
		}
	}
	refused := map[*wgPeer]bool{}
	owners := map[wgtypes.Key]string{}
	for k, all := range byKey {
		own := ownerOf(all, func(p *wgPeer) Node { return p.node }, r.owners[k], func(p *wgPeer) bool { return allows(have[0][k], p) || allows(have[1][k], p) })
		for i, p := range all {
			if i == own {
				owners[k] = p.node.Name
			} else if !refused[p] {
				refused[p] = true
				errs = append(errs, &NodeError{p.node.Name, fmt.Sprintf("annotation %s: another node has the key %s; each node needs its own", AnnotationWireGuard, k)})
			}
		}
	}
	r.owners = owners
	for _, p := range claimed {
		for lane := range lanes {
			known, ok := have[lane][p.keys[lane]]
			p.healthy[lane] = ok && !known.LastHandshakeTime.IsZero()
		}
	}
	return slices.DeleteFunc(claimed, func(p *wgPeer) bool { return refused[p] }), errs
}

// allows says that the kernel has a peer for the pods of a node.
func allows(have wgtypes.Peer, p *wgPeer) bool {
	return len(have.AllowedIPs) > 0 && slices.ContainsFunc(p.cidrs, func(c netip.Prefix) bool { return c == prefixOf(have.AllowedIPs[0]) })
}

func prefixOf(n net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}

func netOf(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// setPeers adds and changes the peers of a device, or removes those that are not wanted.
func (r *wireGuard) setPeers(lane int, peers []*wgPeer, have map[wgtypes.Key]wgtypes.Peer, remove bool) error {
	var changes []wgtypes.PeerConfig
	wanted := make(map[wgtypes.Key]bool, len(peers))
	for _, p := range peers {
		wanted[p.keys[lane]] = true
		if !remove {
			if c, ok := r.peerChange(lane, p, have); ok {
				changes = append(changes, c)
			}
		}
	}
	for k := range have {
		if remove && !wanted[k] {
			changes = append(changes, wgtypes.PeerConfig{PublicKey: k, Remove: true, UpdateOnly: true})
			delete(r.endpoints, k)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	r.changes += len(changes)
	if err := r.wg.ConfigureDevice(r.device(lane), wgtypes.Config{Peers: changes}); err != nil {
		return fmt.Errorf("device %s: %d peers: %w", r.device(lane), len(changes), err)
	}
	return nil
}

// peerChange returns what a peer lacks of what it should be.
func (r *wireGuard) peerChange(lane int, p *wgPeer, have map[wgtypes.Key]wgtypes.Peer) (c wgtypes.PeerConfig, changed bool) {
	k := p.keys[lane]
	c.PublicKey = k
	old, ok := have[k]
	endpoint := netip.AddrPortFrom(p.endpoint, uint16(p.port+lane))
	if r.endpoints == nil {
		r.endpoints = map[wgtypes.Key]string{}
	}
	if set := r.endpoints[k]; !ok || set != endpoint.String() && (set != "" || old.Endpoint == nil || old.Endpoint.String() != endpoint.String()) {
		c.Endpoint, changed = net.UDPAddrFromAddrPort(endpoint), true
	}
	r.endpoints[k] = endpoint.String()
	var nets []netip.Prefix
	for _, n := range old.AllowedIPs {
		nets = append(nets, prefixOf(n))
	}
	same := len(nets) == len(p.cidrs)
	for _, n := range p.cidrs {
		same = same && slices.Contains(nets, n)
		c.AllowedIPs = append(c.AllowedIPs, netOf(n))
	}
	if !ok || !same {
		c.ReplaceAllowedIPs, changed = true, true
	} else {
		c.AllowedIPs = nil
	}
	alive := keepalive
	if p.healthy[lane] && ok {
		alive = 0
	}
	if !ok || old.PersistentKeepaliveInterval != alive {
		c.PersistentKeepaliveInterval, changed = &alive, true
	}
	return c, changed
}
