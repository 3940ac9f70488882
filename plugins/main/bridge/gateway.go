// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// gateways puts the gateway addresses on the host's side and lets the host
// route. It leaves in t.bridge and t.route what the devices are like now.
func (t *attach) gateways(context.Context) (err error) {
	t.route = t.bridge
	if t.IsGateway && t.ipamType != "" {
		if t.VLAN != 0 {
			if t.route, err = t.vlanGateway(); err != nil {
				return err
			}
			t.legMade = true
		}
		if err := t.addGateways(); err != nil {
			return err
		}
		if err := veth.Forward(t.Host, t.route, t.rec.Addrs); err != nil {
			return err
		}
	}
	return t.settleBridge()
}

// gatewayPrefixes returns the addresses the host should have: the gateways,
// with the length of the pod's subnets.
func gatewayPrefixes(addrs []netip.Prefix, gateways []netip.Addr) []netip.Prefix {
	var want []netip.Prefix
	for i, gw := range gateways {
		if gw.IsValid() && gw.Is4() == addrs[i].Addr().Is4() {
			want = append(want, netip.PrefixFrom(gw, addrs[i].Bits()))
		}
	}
	return want
}

func (t *attach) wantedGateways() []netip.Prefix {
	gws := make([]netip.Addr, len(t.result.IPs))
	for i, ip := range t.result.IPs {
		gws[i] = ipam.Addr(ip.Gateway)
	}
	return gatewayPrefixes(t.rec.Addrs, gws)
}

func (t *attach) addGateways() error {
	want := t.wantedGateways()
	have, err := t.routeAddrs()
	if err != nil {
		return err
	}
	for _, w := range want {
		if err := t.replaceConflicts(w, want, have); err != nil {
			return err
		}
	}
	if t.ForceAddress { // an address that went may have taken others of its subnet along, by the kernel's doing
		if have, err = t.routeAddrs(); err != nil {
			return err
		}
	}
	for _, w := range want {
		if hasPrefix(have, w) {
			continue
		}
		if err := t.addGateway(w); err != nil {
			return err
		}
	}
	return nil
}

func (t *attach) routeAddrs() ([]rtnl.Addr, error) {
	have, err := t.Host.AddrsOf(t.route.Index, rtnl.FamilyAll)
	return have, cnierr.Wrap(cnierr.CodeKernel, err, "list the addresses of %s", t.route.Name)
}

func hasPrefix(have []rtnl.Addr, w netip.Prefix) bool {
	return slices.ContainsFunc(have, func(a rtnl.Addr) bool { return a.Prefix == w })
}

// replaceConflicts makes room for w unless it is there. Addresses that conflict
// with it are removed with forceAddress, else an error: every other IPv4
// address that this ADD does not want too, and IPv6 addresses of overlapping
// subnets.
func (t *attach) replaceConflicts(w netip.Prefix, want []netip.Prefix, have []rtnl.Addr) error {
	if hasPrefix(have, w) {
		return nil
	}
	for _, a := range have {
		if !conflicts(a.Prefix, w, want) {
			continue
		}
		if !t.ForceAddress {
			return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("%s has the address %s, which conflicts with the gateway %s", t.route.Name, a.Prefix, w),
				"forceAddress replaces it")
		}
		t.rb.Push("addresses of "+t.route.Name, func(context.Context) error { return t.restoreAddrs(have) })
		if err := gone(t.Host.DelAddr(a)); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "replace an address of %s", t.route.Name)
		}
	}
	return nil
}

// restoreAddrs gives the device back what it lacks of what it had, in that order:
// the first of a subnet is the one by which the kernel keeps the others.
func (t *attach) restoreAddrs(had []rtnl.Addr) error {
	var errs []error
	for _, a := range had {
		a.Flags &= unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
		errs = append(errs, exists(gone(t.Host.AddAddr(a))))
	}
	return errors.Join(errs...)
}

// addGateway puts w on the device.
func (t *attach) addGateway(w netip.Prefix) error {
	addr := rtnl.Addr{LinkIndex: t.route.Index, Prefix: w}
	if w.Addr().Is6() {
		// The gateway is the host's by configuration; checking for another owner would keep the first pods waiting for seconds.
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := exists(t.Host.AddAddr(addr)); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "give %s the gateway address", t.route.Name)
	}
	t.rb.Push("gateway address "+w.String(), func(context.Context) error { return t.removeGateway(addr) })
	if t.route.Index == t.bridge.Index {
		// With its first gateway address the bridge keeps its MAC, whatever ports come and go, as with upstream.
		if err := t.Host.SetMAC(t.bridge.Index, t.bridge.MAC); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "keep the address of %s", t.Bridge)
		}
	}
	return nil
}

func conflicts(have, w netip.Prefix, want []netip.Prefix) bool {
	if have.Addr().Is4() != w.Addr().Is4() {
		return false
	}
	if have.Addr().Is6() {
		return have.Overlaps(w)
	}
	for _, other := range want {
		if have == other {
			return false
		}
	}
	return true
}

// removeGateway undoes addGateway unless other pods are on the bridge, which
// may have come to rely on the address.
func (t *attach) removeGateway(a rtnl.Addr) error {
	ports, err := t.Host.LinksOf(t.bridge.Index)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if p.Index != t.hostEnd.Index && p.Index != t.route.PeerIndex {
			return nil
		}
	}
	return gone(t.Host.DelAddr(a))
}

// settleBridge reads the bridge again. A bridge that another process made takes the
// address of a new port unless it was given one: if it routes, it gets the one back
// that it had, and keeps it. Pods have it in their neighbour tables, the
// datapath in its endpoints.
func (t *attach) settleBridge() error {
	br, err := t.Host.LinkByIndex(t.bridge.Index)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "look up the bridge")
	}
	if bytes.Equal(br.MAC, t.hostEnd.MAC) && (t.IsGateway || t.masquerade()) {
		if err := t.Host.SetMAC(br.Index, t.bridge.MAC); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "keep the address of %s", t.Bridge)
		}
		br.MAC = t.bridge.MAC
	}
	t.bridge = br
	if !t.legMade {
		t.route = br
	}
	return nil
}

// exists takes "it is there already" for success.
func exists(err error) error {
	if errors.Is(err, rtnl.ErrExist) {
		return nil
	}
	return err
}
