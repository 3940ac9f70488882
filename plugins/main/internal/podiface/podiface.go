// SPDX-License-Identifier: Apache-2.0

// Package podiface gives a pod's interface its addresses and routes, and finds out
// later whether it still has them. What kind of device it is, and who made it,
// does not matter here. It owns no state.
package podiface

import (
	"context"
	"errors"
	"net/netip"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// dadTimeout bounds the wait for duplicate address detection, as upstream
// plugins' does.
const dadTimeout = 5 * time.Second

// Interface is a device in a pod, down and without addresses.
type Interface struct {
	NS   *netns.NS
	Link rtnl.Link
	// Pod is a handle in NS.
	Pod *rtnl.Handle
	Log *log.Logger

	// DAD lets the kernel look for another owner of an IPv6 address before it
	// is used, which takes a second or two. Without it an address is used at once.
	DAD bool
	// Announce sends a gratuitous ARP and an unsolicited neighbour advertisement
	// for each address, so that the neighbours on a shared network forget who
	// had it before.
	Announce bool
	// NoSubnetRoute keeps the kernel from making a route to an address's subnet.
	NoSubnetRoute bool
}

// Configure gives the interface addrs, sets it up, waits until its IPv6
// addresses can be used, and adds routes, in this order. Without addresses it
// only sets it up.
func (i *Interface) Configure(ctx context.Context, addrs []netip.Prefix, routes []rtnl.Route) error {
	if len(addrs) > 0 {
		if HasV6(addrs) || i.Announce {
			if err := i.NS.Do(func() error { return i.sysctls(addrs) }); err != nil {
				return cnierr.Wrap(cnierr.CodeKernel, err, "set the pod's kernel parameters")
			}
		}
		if err := i.Pod.SetLink(i.Link.Index, rtnl.LinkChange{ARPNotify: true}); err != nil {
			i.Log.Debug("the pod's addresses are not announced", log.String(log.KeyDevice, i.Link.Name), log.Error(err))
		}
	}
	for _, prefix := range addrs {
		if err := i.Pod.AddAddr(i.addr(prefix)); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "give the pod its address")
		}
	}
	dad, err := i.watchDAD(addrs)
	if err != nil {
		return err
	}
	if dad != nil {
		defer dad.Close()
	}
	if err := i.Pod.SetUp(i.Link.Index); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "set %s up", i.Link.Name)
	}
	if err := i.waitDAD(ctx, dad); err != nil {
		return err
	}
	for _, hops := range together(routes) {
		if err := i.Pod.AddHops(hops); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "give the pod its routes")
		}
	}
	if len(addrs) > 0 && !HasV6(addrs) {
		return cnierr.Wrap(cnierr.CodeKernel, i.NS.Do(func() error { i.wish(i.dadKeys()); return nil }), "enter the pod's namespace")
	}
	return nil
}

// ConfigureResult is Configure with the routes of a result.
func (i *Interface) ConfigureResult(ctx context.Context, addrs []netip.Prefix, res *types100.Result) error {
	routes, err := Routes(res, i.Link.Index)
	if err != nil {
		return err
	}
	return i.Configure(ctx, addrs, routes)
}

// sysctls runs inside the pod's namespace.
func (i *Interface) sysctls(addrs []netip.Prefix) error {
	name := i.Link.Name
	if HasV6(addrs) {
		for _, dev := range []string{"lo", name} {
			if err := i.enableV6(dev); err != nil {
				return err
			}
		}
		if err := sysctl.Set("net/ipv6/conf/"+name+"/keep_addr_on_down", "1"); err != nil {
			return err
		}
	}
	if i.Announce {
		i.wish(map[string]string{"net/ipv6/conf/" + name + "/ndisc_notify": "1"})
	}
	if HasV6(addrs) {
		i.wish(i.dadKeys())
	}
	return nil
}

// dadKeys are the sysctls that say whether the kernel checks addresses for another
// owner (DAD). Set them last if the pod has no IPv6 address. Otherwise the
// link-local address becomes usable as the link comes up, and the kernel, under
// RTNL, notifies every bridge port three times.
func (i *Interface) dadKeys() map[string]string {
	conf := "net/ipv6/conf/" + i.Link.Name
	if i.DAD {
		return map[string]string{conf + "/accept_dad": "1", conf + "/enhanced_dad": "1"}
	}
	return map[string]string{conf + "/accept_dad": "0"}
}

// wish sets kernel parameters that a pod can do without.
func (i *Interface) wish(wishes map[string]string) {
	for key, value := range wishes {
		if err := sysctl.Set(key, value); err != nil {
			i.Log.Debug("kernel parameter stays", log.String(log.KeyKey, key), log.Error(err))
		}
	}
}

func (i *Interface) enableV6(dev string) error {
	key := "net/ipv6/conf/" + dev + "/disable_ipv6"
	off, err := sysctl.Get(key)
	if err != nil {
		i.Log.Debug("cannot tell whether IPv6 is on", log.String(log.KeyDevice, dev), log.Error(err))
		return nil
	}
	if off == "0" {
		return nil
	}
	return sysctl.Set(key, "0")
}

// HasV6 reports that an IPv6 address is among addrs.
func HasV6(addrs []netip.Prefix) bool {
	for _, p := range addrs {
		if p.Addr().Is6() {
			return true
		}
	}
	return false
}

// addr marks an IPv6 address as checked unless the kernel has something to do
// when it takes it into use: to check it, or to announce it.
func (i *Interface) addr(p netip.Prefix) rtnl.Addr {
	a := rtnl.Addr{LinkIndex: i.Link.Index, Prefix: p}
	if p.Addr().Is6() && !i.DAD && !i.Announce {
		a.Flags |= unix.IFA_F_NODAD
	}
	if i.NoSubnetRoute {
		a.Flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return a
}

// watchDAD subscribes to the pod's address changes when there will be some to
// wait for; nil otherwise.
func (i *Interface) watchDAD(addrs []netip.Prefix) (*rtnl.Watch, error) {
	if !i.DAD && !i.Announce || !HasV6(addrs) {
		return nil, nil // nothing to wait for is an answer
	}
	w, err := rtnl.SubscribeIn(i.NS, rtnl.GroupAddrV6, rtnl.GroupLink)
	return w, cnierr.Wrap(cnierr.CodeKernel, err, "listen for address changes")
}

// waitDAD returns when none of the pod's IPv6 addresses is tentative any more.
// An address that another host has is an error. So is running out of time,
// but only on a link that works: on one that does not, the check cannot end,
// and without DAD is not waited for.
func (i *Interface) waitDAD(ctx context.Context, w *rtnl.Watch) error {
	if w == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dadTimeout)
	defer cancel()
	err := w.Wait(ctx, i.Link.Index, func() (bool, error) {
		done, err := i.settled()
		if done || err != nil || i.DAD {
			return done, err
		}
		l, err := i.Pod.LinkByIndex(i.Link.Index)
		return err == nil && l.OperState != rtnl.OperUp && l.OperState != rtnl.OperUnknown, err
	})
	var conflict *cnierr.Error
	switch {
	case errors.As(err, &conflict):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		if l, lerr := i.Pod.LinkByIndex(i.Link.Index); lerr == nil && l.OperState != rtnl.OperUp {
			return nil
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "wait for duplicate address detection")
}

func (i *Interface) settled() (bool, error) {
	addrs, err := i.Pod.AddrsOf(i.Link.Index, rtnl.FamilyV6)
	if err != nil {
		return false, err
	}
	done := true
	for _, a := range addrs {
		if a.DADFailed() {
			return false, cnierr.New(cnierr.CodeConflict, "IPv6 address "+a.Prefix.String()+" is in use on the network", "duplicate address detection")
		}
		done = done && !a.Tentative()
	}
	return done, nil
}
