// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
	holders   map[wgtypes.Key]string // the nodes that have them
}

// known are the peers that the kernel has in both lanes.
type known [lanes]map[wgtypes.Key]wgtypes.Peer

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

func (r *wireGuard) name() string { return ModeWireGuard }

func (r *wireGuard) sync(self Node, others []Node, w *Wanted) error {
	links, have, err := r.ensureDevices(self)
	if err != nil {
		return err
	}
	t, err := r.readTable()
	if err != nil {
		return err
	}
	now := r.now()
	nodes, errs := checkFacts(&r.cfg, self, others)
	peers, bad := r.plan(t, self, nodes, have)
	want, late := r.routesTo(peers, links, activeLane(now, r.cfg.WireGuard.KeyRotation))
	errs = append(errs, bad...)
	// A peer comes before its routes, and goes after them.
	errs = append(errs, r.setPeers(0, peers, have[0], false), r.setPeers(1, peers, have[1], false))
	errs = append(errs, r.setRoutes(t, want)...)
	errs = append(errs, r.setPeers(0, peers, have[0], true), r.setPeers(1, peers, have[1], true))
	if r.keys.staleKey(now, r.cfg.WireGuard.KeyRotation) {
		errs = append(errs, r.renew(now, late, peers))
	}
	w.Again = max(min(nextStep(now, r.cfg.WireGuard.KeyRotation), longestWait), time.Second)
	if late {
		w.Again = min(w.Again, recheck)
	}
	w.SelfAnnotations[AnnotationWireGuard], err = r.keys.annotation(r.cfg.WireGuard.Port)
	return errors.Join(append(errs, err, r.sweep(r.device(0), r.device(1)))...)
}

// routesTo sends by the active lane, and by the other one to nodes with which only that one has had a handshake: late says that there are some.
func (r *wireGuard) routesTo(peers []*wgPeer, links [lanes]int, active int) (want []wantedRoute, late bool) {
	for _, p := range peers {
		lane := active
		if !p.healthy[active] && p.healthy[1-active] {
			lane, late = 1-active, true
		}
		for _, c := range p.cidrs {
			want = append(want, wantedRoute{p.node.Name, routeTo(c, netip.Addr{}, links[lane])})
		}
	}
	return want, late
}

func (r *wireGuard) open() (err error) {
	if err := r.base.open(); err != nil {
		return err
	}
	if r.nl == nil {
		if r.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
	}
	if r.keys == nil {
		r.keys, err = loadKeys(r.cfg.StateDir, r.now())
	}
	return err
}

// ensureDevices returns the links of both lanes, and their peers.
func (r *wireGuard) ensureDevices(self Node) (links [lanes]int, have known, err error) {
	v4 := len(self.InternalIPs) > 0 && self.InternalIPs[0].Is4()
	_, uplink, err := r.uplinkOf(self, v4)
	if err != nil {
		return links, have, err
	}
	for lane := range lanes {
		if links[lane], have[lane], err = r.ensureDevice(lane, uplink.MTU-overheadWG); err != nil {
			return links, have, fmt.Errorf("device %s: %w", r.device(lane), err)
		}
		for _, p := range self.PodCIDRs { // the source of what the node itself sends, inside of what its peers let it send
			if p == firstCIDR(self, p.Addr().Is4()) {
				if err := r.setAddress(links[lane], netip.PrefixFrom(p.Addr(), p.Addr().BitLen())); err != nil {
					return links, have, err
				}
			}
		}
	}
	return links, have, nil
}

func (r *wireGuard) ensureDevice(lane, mtu int) (index int, peers map[wgtypes.Key]wgtypes.Peer, err error) {
	name, alias, up := r.device(lane), aliasPrefix+ModeWireGuard, true
	l, err := r.h.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		l, err = r.makeDevice(name)
	}
	if err != nil {
		return 0, nil, err
	}
	if l.Kind != "wireguard" {
		return 0, nil, fmt.Errorf("it is of type %q; remove it, or set another wireguard.device", l.Kind)
	}
	if r.wg == nil { // not before there is a device: that loads the module
		if r.wg, err = wgctrl.New(); err != nil {
			return 0, nil, err
		}
	}
	d, err := r.wg.Device(name)
	if err != nil {
		return 0, nil, err
	}
	// One without alias and key is of a process that was killed before it gave it both.
	if !isOurs(l) && (l.Alias != "" || d.PrivateKey != (wgtypes.Key{})) {
		return 0, nil, errors.New("it is there and not Sluice's; remove it, or set another wireguard.device")
	}
	if l.Alias != alias || l.MTU != mtu {
		if err := r.h.SetLink(l.Index, rtnl.LinkChange{Alias: &alias, MTU: &mtu}); err != nil {
			return 0, nil, err
		}
		r.changes++
	}
	peers = make(map[wgtypes.Key]wgtypes.Peer, len(d.Peers))
	if d.PrivateKey == r.keys.Keys[lane].key && d.ListenPort == r.cfg.WireGuard.Port+lane {
		for _, p := range d.Peers {
			peers[p.PublicKey] = p
		}
	} else if err := r.setKey(lane); err != nil {
		return 0, nil, err
	}
	if !l.Up {
		r.changes++
		r.devices++
		err = r.h.SetLink(l.Index, rtnl.LinkChange{Up: &up})
	}
	return l.Index, peers, err
}

func (r *wireGuard) makeDevice(name string) (rtnl.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := r.nl.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
		return rtnl.Link{}, err
	}
	r.changes++
	// A node may receive by one lane what it answers by the other one. WireGuard itself checks the sources (AllowedIPs).
	if err := sysctl.Set("net/ipv4/conf/"+name+"/rp_filter", "2"); err != nil {
		return rtnl.Link{}, err
	}
	return r.h.LinkByName(name)
}

// setKey gives a device the key of its lane. All peers are made anew: what the kernel knows of handshakes belongs to the key of before.
func (r *wireGuard) setKey(lane int) error {
	port, key := r.cfg.WireGuard.Port+lane, r.keys.Keys[lane].key
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
	if err := r.setKey(lane); err != nil {
		return err
	}
	return r.setPeers(lane, peers, nil, false)
}

// plan returns the nodes that can be peers.
func (r *wireGuard) plan(t *table, self Node, nodes []Node, have known) (_ []*wgPeer, errs []error) {
	byKey := map[wgtypes.Key][]*wgPeer{}
	var claimed []*wgPeer
	for _, n := range nodes {
		if len(n.PodCIDRs) == 0 {
			continue
		}
		p, err := r.readPeer(self, n)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var bad []error
		p.cidrs, bad = r.usable(t, n)
		errs = append(errs, bad...)
		claimed = append(claimed, p)
		for lane, k := range p.keys {
			byKey[k] = append(byKey[k], p)
			kept, ok := have[lane][k]
			p.healthy[lane] = ok && !kept.LastHandshakeTime.IsZero()
		}
	}
	refused := map[*wgPeer]bool{}
	holders := map[wgtypes.Key]string{}
	for k, all := range byKey {
		own := ownerOf(all, func(p *wgPeer) Node { return p.node }, r.holders[k], func(p *wgPeer) bool { return allows(have[0][k], p) || allows(have[1][k], p) })
		for i, p := range all {
			if i == own {
				holders[k] = p.node.Name
			} else if !refused[p] {
				refused[p] = true
				errs = append(errs, &NodeError{p.node.Name, fmt.Sprintf("annotation %s: another node has the key %s; each node needs its own", AnnotationWireGuard, k)})
			}
		}
	}
	r.holders = holders
	return slices.DeleteFunc(claimed, func(p *wgPeer) bool { return refused[p] }), errs
}

// readPeer takes a node's keys and where it is reached: by the family of this node's first address, if it has one of that.
func (r *wireGuard) readPeer(self, n Node) (*wgPeer, error) {
	keys, err := readKeys(n)
	if err != nil {
		return nil, err
	}
	if keys.keys[0] == keys.keys[1] {
		return nil, &NodeError{n.Name, fmt.Sprintf("annotation %s: both keys are one; the node needs two", AnnotationWireGuard)}
	}
	for _, own := range r.keys.Keys {
		if slices.Contains(keys.keys[:], own.public) {
			return nil, &NodeError{n.Name, fmt.Sprintf("annotation %s: this node has that key", AnnotationWireGuard)}
		}
	}
	v4 := len(self.InternalIPs) > 0 && self.InternalIPs[0].Is4()
	p := &wgPeer{node: n, peerKeys: keys, endpoint: firstOf(n.InternalIPs, v4)}
	if !p.endpoint.IsValid() {
		p.endpoint = firstOf(n.InternalIPs, !v4)
	}
	if !p.endpoint.IsValid() {
		return nil, &NodeError{n.Name, "InternalIP: the node has none that can be used"}
	}
	return p, nil
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
