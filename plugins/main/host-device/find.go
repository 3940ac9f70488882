// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// find returns the host's device that the configuration means, and its own
// name, which it does not have when it has come back from a pod by itself. The
// order of the keys is upstream's.
func (p *plugin) find(host *rtnl.Handle, r *request) (l rtnl.Link, own string, err error) {
	key, value := "device", r.Device
	switch {
	case r.Device != "":
		l, err = p.named(host, r.Device)
	case r.hwAddr != nil:
		key, value = "hwaddr", r.HWAddr
		l, err = withAddress(host, r)
	case r.KernelPath != "":
		key, value = "kernelpath", r.KernelPath
		l, err = lookUp(host, func() (string, error) { return p.sys.pathNet(r.KernelPath) })
	case r.PCIBusID != "":
		key, value = "pciBusID", r.PCIBusID
		l, err = lookUp(host, func() (string, error) { return p.sys.pciNet(r.PCIBusID) })
	default:
		key, value = "runtimeConfig.deviceID", r.aux
		l, err = lookUp(host, func() (string, error) { return p.sys.auxNet(r.aux) })
	}
	switch {
	case errors.Is(err, rtnl.ErrNotFound) || errors.Is(err, errNoNet):
		return l, "", cnierr.Wrap(cnierr.CodeConfig, err, "invalid %s %q: the host has no such device", key, value)
	case err != nil:
		return l, "", cnierr.Wrap(cnierr.CodeKernel, err, "find the device of %s %q", key, value)
	case l.Loopback:
		return l, "", cnierr.Config(key, value, "the loopback device cannot be moved")
	}
	if key == "device" && l.Alias == r.Device {
		return l, r.Device, nil // lost, see named
	}
	if key == "device" {
		return l, l.Name, nil // device may be an alternative name
	}
	return l, p.ownName(l), nil
}

// named returns the device of that name, or the one that has lost it: the
// kernel gives hardware back, when a pod's namespace ends, under the name that
// it had in the pod. Its alias still says the own one.
func (p *plugin) named(host *rtnl.Handle, name string) (rtnl.Link, error) {
	l, err := host.LinkByName(name)
	if !errors.Is(err, rtnl.ErrNotFound) {
		return l, err
	}
	links, lerr := host.Links()
	if lerr != nil {
		return l, lerr
	}
	for _, l := range links {
		if l.Alias == name && l.Kind == "" {
			return l, nil
		}
	}
	return l, err
}

// withAddress returns the first device with the hardware address, by age: a
// device on top of another (a VLAN, a bond) has the address of the lower one.
func withAddress(host *rtnl.Handle, r *request) (rtnl.Link, error) {
	links, err := host.Links()
	if err != nil {
		return rtnl.Link{}, err
	}
	slices.SortFunc(links, func(a, b rtnl.Link) int { return cmp.Compare(a.Index, b.Index) })
	for _, l := range links {
		if bytes.Equal(l.MAC, r.hwAddr) {
			return l, nil
		}
	}
	return rtnl.Link{}, rtnl.ErrNotFound
}

func lookUp(host *rtnl.Handle, name func() (string, error)) (rtnl.Link, error) {
	n, err := name()
	if err != nil {
		return rtnl.Link{}, err
	}
	return host.LinkByName(n)
}

// ownName is the name that a device has on the host: that of its alias when a
// record says that it was lent under it.
func (p *plugin) ownName(l rtnl.Link) string {
	if l.Alias == "" || l.Alias == l.Name || cniconf.BadIfName(l.Alias) != "" {
		return l.Name
	}
	records, err := p.Records.List("")
	if err != nil {
		return l.Name
	}
	for _, rec := range records {
		var s section
		if ok, err := rec.Section(Name, &s); ok && err == nil && s.Device == l.Alias && s.same(l, rec.IfName) {
			return s.Device
		}
	}
	return l.Name
}

// claimed reports that the record of another attachment names the device.
func (p *plugin) claimed(s section, ref attachments.ID) bool {
	records, err := p.Records.List("")
	if err != nil {
		return false
	}
	for _, rec := range records {
		var o section
		if ok, err := rec.Section(Name, &o); ok && err == nil && rec.ID != ref &&
			o.Device == s.Device && o.PermMAC == s.PermMAC && o.MAC == s.MAC {
			return true
		}
	}
	return false
}
