// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// dadTimeout bounds the wait for duplicate address detection, as the reference
// plugin's does.
const dadTimeout = 5 * time.Second

// configurePod gives the pod's end its addresses and routes and sets it up.
func (t *attach) configurePod(ctx context.Context) (err error) {
	if t.DisableContainerIf {
		return nil
	}
	if t.up, err = nl.Subscribe(nl.GroupLink); err != nil { // before the change that waitUp waits for
		return cnierr.Wrap(cnierr.CodeKernel, err, "listen for link changes")
	}
	if len(t.rec.Addrs) > 0 {
		if err := t.ns.Do(t.podSysctls); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "set the pod's kernel parameters")
		}
	}
	for _, prefix := range t.rec.Addrs {
		if err := t.pod.AddAddr(t.podAddr(prefix)); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "give the pod its address")
		}
	}
	dad, err := t.watchDAD()
	if err != nil {
		return err
	}
	if dad != nil {
		defer dad.Close()
	}
	if err := t.pod.SetUp(t.podEnd.Index); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "set %s up", t.args.IfName)
	}
	if err := t.waitDAD(ctx, dad); err != nil {
		return err
	}
	return t.addRoutes()
}

// podSysctls runs inside the pod's namespace.
func (t *attach) podSysctls() error {
	ifname := t.args.IfName
	if t.hasV6() {
		for _, dev := range []string{"lo", ifname} {
			key := "net/ipv6/conf/" + dev + "/disable_ipv6"
			off, err := sysctl.Get(key)
			if err != nil {
				t.args.Log.Debug("cannot tell whether IPv6 is on", zap.String(log.KeyDevice, dev), zap.Error(err))
				continue
			}
			if off == "0" {
				continue
			}
			if err := sysctl.Set(key, "0"); err != nil {
				return err
			}
		}
		if err := sysctl.Set("net/ipv6/conf/"+ifname+"/keep_addr_on_down", "1"); err != nil {
			return err
		}
	}
	wishes := []struct{ key, value string }{
		{"net/ipv6/conf/" + ifname + "/accept_dad", "0"},
		{"net/ipv4/conf/" + ifname + "/arp_notify", "1"},
	}
	if t.EnableDAD {
		wishes[0].value = "1"
		wishes = append(wishes, struct{ key, value string }{"net/ipv6/conf/" + ifname + "/enhanced_dad", "1"})
	}
	for _, w := range wishes {
		if err := sysctl.Set(w.key, w.value); err != nil {
			t.args.Log.Debug("kernel parameter stays", zap.String(log.KeyKey, w.key), zap.Error(err))
		}
	}
	return nil
}

func (t *attach) hasV6() bool {
	for _, p := range t.rec.Addrs {
		if p.Addr().Is6() {
			return true
		}
	}
	return false
}

// podAddr marks an IPv6 address as checked unless the pod wants the check: it
// is then usable at once.
func (t *attach) podAddr(p netip.Prefix) nl.Addr {
	a := nl.Addr{LinkIndex: t.podEnd.Index, Prefix: p}
	if p.Addr().Is6() && !t.EnableDAD {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// watchDAD subscribes to the pod's address changes when there will be some to
// wait for; nil otherwise.
func (t *attach) watchDAD() (*nl.Watch, error) {
	if !t.EnableDAD || !t.hasV6() {
		return nil, nil //nolint:nilnil // nothing to wait for is an answer
	}
	w, err := nl.SubscribeIn(t.ns, nl.GroupAddrV6, nl.GroupLink)
	return w, cnierr.Wrap(cnierr.CodeKernel, err, "listen for address changes")
}

// waitDAD returns when none of the pod's IPv6 addresses is tentative any more.
// An address that somebody else has is an error. So is running out of time,
// but only on a link that works: on one that does not, the check cannot end.
func (t *attach) waitDAD(ctx context.Context, w *nl.Watch) error {
	if w == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dadTimeout)
	defer cancel()
	err := w.Wait(ctx, t.podEnd.Index, func() (bool, error) {
		addrs, err := t.pod.AddrsOf(t.podEnd.Index, nl.FamilyV6)
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
	})
	var conflict *cnierr.Error
	switch {
	case errors.As(err, &conflict):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		if l, lerr := t.pod.LinkByIndex(t.podEnd.Index); lerr == nil && l.OperState != nl.OperUp {
			return nil
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "wait for duplicate address detection")
}

// addRoutes adds the result's routes. A route without a gateway goes by the
// first gateway of its family.
func (t *attach) addRoutes() error {
	for i, r := range t.result.Routes {
		route, err := t.podRoute(r)
		if err != nil {
			return err
		}
		if t.sameAsEarlier(route, i) {
			continue
		}
		if err := t.pod.AddRoute(route); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "give the pod its routes")
		}
	}
	return nil
}

func (t *attach) podRoute(r *types.Route) (nl.Route, error) {
	dst, ok := toPrefix(&r.Dst)
	if !ok {
		return nl.Route{}, cnierr.New(cnierr.CodeDecode, "the IPAM plugin returned a route to "+r.Dst.String(), "")
	}
	route := nl.Route{LinkIndex: t.podEnd.Index, Dst: dst.Masked(), Gateway: toAddr(r.GW), Priority: r.Priority, MTU: r.MTU, AdvMSS: r.AdvMSS}
	if !route.Gateway.IsValid() {
		route.Gateway = t.firstGateway(dst.Addr().Is4())
	}
	if r.Table != nil {
		route.Table = *r.Table
	}
	if r.Scope != nil {
		route.Scope = uint8(*r.Scope)
	}
	return route, nil
}

func (t *attach) firstGateway(v4 bool) netip.Addr {
	for _, ip := range t.result.IPs {
		if gw := toAddr(ip.Gateway); gw.IsValid() && gw.Is4() == v4 {
			return gw
		}
	}
	return netip.Addr{}
}

// sameAsEarlier reports that one of the first n routes is route already; IPAM
// plugins with several ranges repeat their routes.
func (t *attach) sameAsEarlier(route nl.Route, n int) bool {
	for _, r := range t.result.Routes[:n] {
		if earlier, err := t.podRoute(r); err == nil && earlier == route {
			return true
		}
	}
	return false
}
