// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

// CheckEndpoint compares what Enable(ep, f) has made with what is there: the entries of ep, the programs on its device, and
// what every endpoint needs of the node. It changes nothing. The error wraps ErrDiffers, or ErrNotLoaded where pins are gone.
func (d *Datapath) CheckEndpoint(_ context.Context, ep Endpoint, f Feature) error {
	if f == FeatureMACCheck {
		return d.checkMACCheck(ep)
	}
	if err := ep.validate(); err != nil {
		return err
	}
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	var errs []error
	if ep.Podns != nil && (ep.HostIfindex == 0 || len(podnsHooks(uint32(f), true)) > 0) {
		errs = append(errs, d.checkPodns(a, ep.podns(f)))
	}
	if ep.HostIfindex == 0 {
		return errors.Join(append(errs, attach.CheckPins(d.tree))...)
	}
	gw, err := gatewaysOf(a, ep)
	errs = append(errs, err)
	var id uint16
	if f&FeatureAdmit != 0 {
		id, err = d.checkPolicy(uint32(ep.HostIfindex), ep.Ref, ep.Policy, ep.NetworkPolicy)
		errs = append(errs, err)
	}
	for _, p := range ep.Addrs {
		want := ep.value(netip.PrefixFrom(p.Addr().Unmap(), p.Bits()), 0, gw)
		want.Policy = id
		errs = append(errs, checkAddr(eps, ep, p, f, want))
	}
	errs = append(errs, attach.CheckHooks(a, ep.HostIfindex, ep.HostIfName, hook.OfPod()))
	return errors.Join(append(errs, attach.CheckPins(d.tree), d.checkUplinks(a))...)
}

// checkAddr compares the entry of one address with want, but for the flags and the policy of features other than f.
func checkAddr(eps pintree.EndpointMaps, ep Endpoint, p netip.Prefix, f Feature, want *endpoint.Value) error {
	addr := p.Addr().Unmap()
	got, ok, err := eps.Addrs.Get(addr)
	switch {
	case err != nil:
		return fmt.Errorf("endpoint %s: %w", addr, err)
	case !ok:
		return pintree.Differs("no endpoint for %s", addr)
	case got.Owner != ep.Ref.Owner():
		return pintree.Differs("endpoint %s belongs to another attachment", addr)
	case got.Flags&uint32(f) != uint32(f):
		return pintree.Differs("endpoint %s has %v, want %v", addr, endpoint.FlagNames(got.Flags), f)
	}
	if got.Tracked != 0 {
		if has, err := eps.Devices.Has(got.Ifindex); err != nil {
			return fmt.Errorf("endpoint %s: device %d: %w", addr, got.Ifindex, err)
		} else if !has {
			return pintree.Differs("endpoint %s: sl_pod_devices lacks device %d", addr, got.Ifindex)
		}
	}
	want.Tracked = got.Tracked // not by an earlier build, nor where the map is full
	want.Flags = got.Flags
	want.Mtu = got.Mtu // a later plugin of the chain may have tuned the device's
	if f&FeatureAdmit == 0 {
		want.Policy = got.Policy
	}
	if got != *want {
		return pintree.Differs("endpoint %s is %+v, want %+v", addr, got, *want)
	}
	return nil
}
