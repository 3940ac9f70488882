// SPDX-License-Identifier: Apache-2.0

// Package hostdevice is the main plugin that lends a pod a device of the host:
// it moves the device into the pod's network namespace and gives it back.
//
// It owns nothing but the loan. Who lent what is kept twice: in the device's
// alias, as upstream's plugin does, so that either can give back what the
// other took; and in the section "host-device" of the attachment record, by
// which DEL and GC find the device wherever it has got to. A device that the
// pod drives itself, past the kernel (DPDK), is not moved at all.
package hostdevice

import (
	"bytes"
	"encoding/json"
	"net"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "host-device"

// Deps are the plugin's dependencies.
type Deps struct {
	IPAM    ipam.Plugin
	Records *attachments.Dir
	// Root is where sysfs is found: the directory that has sys/. Empty means "/".
	Root string
}

type plugin struct {
	Deps
	sys sysfs
}

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	if d.Root == "" {
		d.Root = "/"
	}
	p := &plugin{Deps: d, sys: sysfs{d.Root}}
	return &cniskel.Plugin{
		Name:     Name,
		Usage:    version.About(Name),
		Versions: version.All(),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       p.gc,
		Status:   p.status,
	}
}

// section is what an attachment record holds of this plugin: how to recognise
// the device, and what it was like before it was lent. Its JSON is read by later
// versions.
type section struct {
	Device  string          `json:"device,omitempty"` // its own name; empty for a DPDK device
	Alias   string          `json:"alias,omitempty"`  // that it had before
	Kind    string          `json:"kind,omitempty"`   // rtnl link kind; empty for hardware
	MAC     string          `json:"mac,omitempty"`
	PermMAC string          `json:"permMAC,omitempty"` // burnt in; empty when it has none
	MTU     int             `json:"mtu,omitempty"`
	PCI     string          `json:"pci,omitempty"`
	Path    string          `json:"path,omitempty"` // kernelpath or auxiliary device that it was found by
	DPDK    bool            `json:"dpdk,omitempty"`
	NetNS   uint64          `json:"netnsInode,omitempty"` // of the namespace it went to: a path may name another later
	IPAM    json.RawMessage `json:"ipam,omitempty"`       // the configuration's, for a DEL that comes without one
}

// describe notes what l is like.
func describe(l rtnl.Link, own string) section {
	return section{
		Device: own, Alias: l.Alias, Kind: l.Kind, MAC: l.MAC.String(), PermMAC: l.PermMAC.String(), MTU: l.MTU,
	}
}

// same reports that l is the lent device. Hardware is known by the address
// burnt into it, whatever the pod did. Anything else is known by the alias that
// the loan left on it, or, where the pod has cleared that, by its address while
// it has the name it was lent under.
func (s section) same(l rtnl.Link, lentAs string) bool {
	switch {
	case s.Device == "" || l.Kind != s.Kind || l.Loopback:
		return false
	case s.PermMAC != "" && s.Kind == "":
		mac, err := net.ParseMAC(s.PermMAC)
		return err == nil && bytes.Equal(l.PermMAC, mac)
	case l.Alias == s.Device:
		return true
	}
	return s.MAC != "" && l.MAC.String() == s.MAC && (l.Name == lentAs || l.Name == s.Device)
}

// bare reports that l may be the lent device by its kind and name alone, for one
// that has no hardware address to be known by (WireGuard, TUN). It tells nothing
// where another process may have made another device of that name.
func (s section) bare(l rtnl.Link, name string) bool {
	return s.Device != "" && s.MAC == "" && len(l.MAC) == 0 && l.Kind == s.Kind && l.Name == name
}

// remembered is the record's section, if there is one that can be read.
type remembered struct {
	section
	found bool
	path  string // of the namespace
}

func (p *plugin) remember(ref attachments.ID) (r remembered) {
	r.section, r.found, r.path = attachments.ReadSection[section](p.Records, ref, Name)
	return r
}
