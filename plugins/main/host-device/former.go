// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// former is what a device was like on the host before an ADD took it. Only an
// ADD that fails restores all of it: after a DEL the device is down and without
// addresses, as upstream's plugin leaves it.
type former struct {
	link   rtnl.Link
	addrs  []rtnl.Addr
	routes []rtnl.Route
}

// noteFormer reads what moving the device will take from it.
func noteFormer(host *rtnl.Handle, l rtnl.Link) (former, error) {
	f := former{link: l}
	addrs, err := host.AddrsOf(l.Index, rtnl.FamilyAll)
	if err != nil {
		return f, err
	}
	for _, a := range addrs {
		if a.Scope != rtnl.ScopeLink || a.Prefix.Addr().Is4() { // the kernel makes the others anew
			f.addrs = append(f.addrs, a)
		}
	}
	if !l.Up { // it has none
		return f, nil
	}
	routes, err := host.RoutesWhere(rtnl.RouteFilter{LinkIndex: l.Index})
	if err != nil {
		return f, err
	}
	for _, r := range routes {
		if r.Table != rtnl.TableLocal && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA {
			f.routes = append(f.routes, r)
		}
	}
	return f, nil
}

// restore gives the device, which is back on the host, its master, its
// addresses, its state and its routes.
func (f former) restore(host *rtnl.Handle, s section) error {
	l, found, err := findOnHost(host, s, "")
	if err == nil && !found {
		l, err = host.LinkByName(s.Device) // with its former alias
		found = s.bare(l, s.Device)
	}
	if err != nil || !found {
		return unless(err, rtnl.ErrNotFound)
	}
	var errs []error
	if f.link.MasterIndex != 0 && l.MasterIndex != f.link.MasterIndex {
		errs = append(errs, host.SetMaster(l.Index, f.link.MasterIndex))
	}
	for _, a := range f.addrs {
		a.LinkIndex = l.Index
		a.Flags &= unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
		errs = append(errs, unless(host.AddAddr(a), rtnl.ErrExist))
	}
	if f.link.Up {
		errs = append(errs, host.SetUp(l.Index))
		routes := slices.Clone(f.routes)
		for i := range routes {
			routes[i].LinkIndex = l.Index
		}
		for hops := range rtnl.Hops(routes) {
			errs = append(errs, unless(host.AddHops(hops), rtnl.ErrExist))
		}
	}
	return errors.Join(errs...)
}

// unless takes an error of that kind for success.
func unless(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
}
