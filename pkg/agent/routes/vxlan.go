// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// What VXLAN adds to a packet: Ethernet, VXLAN, UDP and IP headers.
const (
	overhead4 = 14 + 8 + 8 + 20
	overhead6 = 14 + 8 + 8 + 40
)

// vxlan sends to other nodes by a VXLAN device of each family, as flannel does: a route, a neighbour and a forwarding entry for each node.
type vxlan struct {
	base
	nl     *netlink.Handle
	owners [2]map[[6]byte]string // the node that has a VTEP MAC, of IPv6 and IPv4
}

// tunnel is what one family's device carries.
type tunnel struct {
	v4     bool
	name   string
	self   vtep
	index  int
	neighs map[netip.Addr]vtep // by the first address of a pod CIDR
	routes []wantedRoute
}

func (r *vxlan) open() (err error) {
	if err := r.base.open(); err != nil {
		return err
	}
	if r.nl == nil {
		r.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	return err
}

func (r *vxlan) name() string { return ModeVXLAN }

func (r *vxlan) sync(self Node, others []Node, w *Wanted) error {
	var tunnels []*tunnel
	var errs []error
	failed := map[bool]bool{}
	for _, v4 := range []bool{true, false} {
		tun, err := r.ensureTunnel(self, v4)
		if err != nil {
			errs, failed[v4] = append(errs, err), true
		} else if tun != nil {
			tunnels = append(tunnels, tun)
			errs = append(errs, writeVTEP(w.SelfAnnotations, self, v4, r.cfg.VXLAN.VNI, tun.self))
		} else {
			blankFamily(w.SelfAnnotations, self, v4)
		}
	}
	r.families(self)
	t, err := r.readTable()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for v4 := range failed {
		t.leave(v4)
	}
	nodes, bad := checkFacts(&r.cfg, self, others)
	errs = append(errs, bad...)
	var want []wantedRoute
	keep := []string{r.cfg.VXLAN.Device, deviceV6(r.cfg.VXLAN.Device)}
	for _, tun := range tunnels {
		t.adopt(tun.index)
		fdb, err := r.forwarding(tun)
		if err != nil {
			errs = append(errs, err)
			t.leave(tun.v4)
			continue
		}
		errs = append(errs, r.plan(t, tun, nodes, fdb)...)
		errs = append(errs, r.setNeighbours(tun, fdb)...)
		want = append(want, tun.routes...)
	}
	errs = append(errs, r.setRoutes(t, want)...)
	for _, tun := range tunnels { // after the routes: no packet asks for them any more
		if tun.neighs != nil {
			errs = append(errs, r.dropNeighbours(tun)...)
		}
	}
	return errors.Join(append(errs, r.sweep(keep...))...)
}

// MTU leaves room for the outer headers. All pods of a node have one MTU, so IPv6 decides where the node has it.
func (r *vxlan) MTU(uplink int) int {
	if r.onlyV4 {
		return uplink - overhead4
	}
	return uplink - overhead6
}

// uplinkOf returns the device with this node's address of a family.
func (b *base) uplinkOf(self Node, v4 bool) (netip.Addr, rtnl.Link, error) {
	local := firstOf(self.InternalIPs, v4)
	if !local.IsValid() {
		return local, rtnl.Link{}, fmt.Errorf("this node has a podCIDR and no InternalIP of %s", familyName(v4))
	}
	addrs, err := b.h.Addrs(rtnl.FamilyAll)
	if err != nil {
		return local, rtnl.Link{}, err
	}
	i := slices.IndexFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.Addr() == local })
	if i < 0 {
		return local, rtnl.Link{}, fmt.Errorf("InternalIP %s of this node is on none of its devices", local)
	}
	l, err := b.h.LinkByIndex(addrs[i].LinkIndex)
	return local, l, err
}

// ensureTunnel makes the device of a family, or removes it if the node has no pods of that family.
func (r *vxlan) ensureTunnel(self Node, v4 bool) (*tunnel, error) {
	tun := &tunnel{v4: v4, name: r.cfg.VXLAN.Device}
	if !v4 {
		tun.name = deviceV6(tun.name)
	}
	cidr := firstCIDR(self, v4)
	if !cidr.IsValid() {
		return nil, r.dropDevice(tun.name)
	}
	local, uplink, err := r.uplinkOf(self, v4)
	if err != nil {
		return nil, err
	}
	want := netlink.NewLinkAttrs()
	want.Name, want.MTU = tun.name, uplink.MTU-overhead6
	if v4 {
		want.MTU = uplink.MTU - overhead4
	}
	dev := &netlink.Vxlan{LinkAttrs: want, VxlanId: r.cfg.VXLAN.VNI, VtepDevIndex: uplink.Index, SrcAddr: local.AsSlice(), Port: r.cfg.VXLAN.Port}
	if tun.index, tun.self.mac, err = r.ensureDevice(dev, ownMAC(self, v4)); err != nil {
		return nil, err
	}
	tun.self.remote = local
	// The kernel takes the address for what the node itself sends to pods, and the answers come back by the device.
	// It is a host's, so that no subnet route stands beside those of the pods.
	return tun, r.setAddress(tun.index, netip.PrefixFrom(cidr.Addr(), cidr.Addr().BitLen()))
}

func firstCIDR(n Node, v4 bool) netip.Prefix {
	if i := slices.IndexFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 }); i >= 0 {
		return n.PodCIDRs[i]
	}
	return netip.Prefix{}
}

// ensureDevice returns the device that want describes. One that is there stays, with its MAC, if its parameters are right:
// traffic then goes on, also over a change from flannel.
func (r *vxlan) ensureDevice(want *netlink.Vxlan, mac net.HardwareAddr) (index int, _ [6]byte, err error) {
	old, err := r.nl.LinkByName(want.Name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
	case err != nil:
		return 0, [6]byte{}, fmt.Errorf("device %s: %w", want.Name, err)
	default:
		have, ok := old.(*netlink.Vxlan)
		if !ok {
			return 0, [6]byte{}, fmt.Errorf("device %s: it is of type %s; remove it, or set another vxlan.device", want.Name, old.Type())
		}
		mac = have.HardwareAddr
		if why := vxlanDiffers(have, want); why == "" {
			return have.Index, [6]byte(mac), r.settle(have, want)
		} else if err := r.nl.LinkDel(have); err != nil {
			return 0, [6]byte{}, fmt.Errorf("device %s: remove it because its %s changed: %w", want.Name, why, err)
		} else {
			r.log.Warn("made the device anew", log.String(log.KeyDevice, want.Name), log.String(log.KeyReason, why+" changed"))
		}
	}
	want.HardwareAddr = mac
	if err := r.nl.LinkAdd(want); err != nil {
		return 0, [6]byte{}, fmt.Errorf("make device %s: %w", want.Name, err)
	}
	r.changes++
	r.devices++
	made, err := r.nl.LinkByName(want.Name)
	if err != nil {
		return 0, [6]byte{}, fmt.Errorf("device %s: %w", want.Name, err)
	}
	// Addresses of routers are no matter of a tunnel. The file is missing where IPv6 is off.
	_ = sysctl.Set("net/ipv6/conf/"+want.Name+"/accept_ra", "0")
	return made.Attrs().Index, [6]byte(mac), r.settle(made, want)
}

// settle sets what can be changed on a living device.
func (r *vxlan) settle(have, want netlink.Link) error {
	h, w := have.Attrs(), want.Attrs()
	alias, up := aliasPrefix+ModeVXLAN, true
	if h.Alias == alias && h.MTU == w.MTU && h.Flags&net.FlagUp != 0 {
		return nil
	}
	c := rtnl.LinkChange{Alias: &alias, Up: &up}
	if h.MTU != w.MTU {
		c.MTU = &w.MTU
	}
	r.changes++
	r.devices++
	return r.h.SetLink(h.Index, c)
}

// vxlanDiffers names the parameter by which a device has to be made anew.
func vxlanDiffers(have, want *netlink.Vxlan) string {
	switch {
	case have.VxlanId != want.VxlanId:
		return "VNI"
	case have.Port != want.Port:
		return "port"
	case have.VtepDevIndex != want.VtepDevIndex:
		return "uplink"
	case !have.SrcAddr.Equal(want.SrcAddr):
		return "local address"
	case have.Learning, have.GBP, have.FlowBased, have.L2miss, have.L3miss, len(have.Group) > 0:
		return "learning or format"
	}
	return ""
}

// dropDevice removes a device if it is Sluice's.
func (b *base) dropDevice(name string) error {
	l, err := b.h.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) || err == nil && !isOurs(l) {
		return nil
	}
	if err != nil {
		return err
	}
	b.changes++
	b.devices++
	return b.h.DelLink(l.Index)
}

// setAddress makes a the only address of the link in its family, but for link-local ones.
func (b *base) setAddress(index int, a netip.Prefix) error {
	have, err := b.h.AddrsOf(index, rtnl.FamilyOf(a.Addr()))
	if err != nil {
		return err
	}
	found := false
	for _, h := range have {
		switch {
		case h.Prefix == a:
			found = true
		case !h.Prefix.Addr().IsLinkLocalUnicast():
			b.changes++
			if err := b.h.DelAddr(h); err != nil && !errors.Is(err, rtnl.ErrNotFound) {
				return err
			}
		}
	}
	if found {
		return nil
	}
	b.changes++
	return b.h.AddAddr(rtnl.Addr{LinkIndex: index, Prefix: a, Flags: unix.IFA_F_NODAD})
}

// adopt takes routes through a device of Sluice for its own: those that flannel has left. The kernel's stay.
func (t *table) adopt(index int) {
	for k, f := range t.foreign {
		if _, taken := t.ours[k]; f.LinkIndex == index && f.Gateway.IsValid() && f.Protocol != unix.RTPROT_KERNEL && f.Protocol != unix.RTPROT_RA && !taken {
			t.ours[k] = f
			delete(t.foreign, k)
		}
	}
}

// candidate is a node with the VTEP that it says it has.
type candidate struct {
	Node
	vtep
}

// plan finds the neighbours and routes of a tunnel.
func (r *vxlan) plan(t *table, tun *tunnel, nodes []Node, fdb map[[6]byte]netip.Addr) (errs []error) {
	tun.neighs = map[netip.Addr]vtep{}
	byMAC := map[[6]byte][]candidate{}
	for _, n := range nodes {
		if !firstCIDR(n, tun.v4).IsValid() {
			continue
		}
		if direct(n) { // not in this mode yet, or no more
			routes, bad := r.planDirect(t, n, func(p netip.Prefix) bool { return p.Addr().Is4() == tun.v4 })
			tun.routes, errs = append(tun.routes, routes...), append(errs, bad...)
			continue
		}
		v, err := readVTEP(n, tun.v4, r.cfg.VXLAN.VNI)
		switch {
		case err != nil:
			errs = append(errs, err)
		case v.mac == tun.self.mac:
			errs = append(errs, &NodeError{n.Name, fmt.Sprintf("VtepMAC %s: this node has it", v.hardwareAddr())})
		case v.remote == tun.self.remote:
			errs = append(errs, &NodeError{n.Name, fmt.Sprintf("public IP %s: this node has it", v.remote)})
		default:
			byMAC[v.mac] = append(byMAC[v.mac], candidate{n, v})
		}
	}
	owners := map[[6]byte]string{}
	for mac, all := range byMAC {
		own := ownerOf(all, func(c candidate) Node { return c.Node }, r.owners[family(tun.v4)][mac], func(c candidate) bool { return c.remote == fdb[mac] })
		for i, c := range all {
			if i != own {
				errs = append(errs, &NodeError{c.Name, fmt.Sprintf("VtepMAC %s: another node has it; each node needs its own", c.hardwareAddr())})
				continue
			}
			owners[mac] = c.Name
			cidrs, bad := r.usable(t, c.Node)
			errs = append(errs, bad...)
			for _, p := range cidrs {
				if p.Addr().Is4() == tun.v4 {
					tun.neighs[p.Addr()] = c.vtep
					route := routeTo(p, p.Addr(), tun.index)
					route.Onlink = true
					tun.routes = append(tun.routes, wantedRoute{c.Name, route})
				}
			}
		}
	}
	r.owners[family(tun.v4)] = owners
	slices.SortFunc(tun.routes, func(a, b wantedRoute) int { return cmp.Compare(a.node, b.node) })
	return errs
}

func family(v4 bool) int {
	if v4 {
		return 1
	}
	return 0
}
