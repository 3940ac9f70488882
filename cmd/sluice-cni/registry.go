// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/delegate"
	hostlocal "github.com/sluice-cni/sluice/plugins/ipam/host-local"
	"github.com/sluice-cni/sluice/plugins/ipam/static"
	"github.com/sluice-cni/sluice/plugins/main/bridge"
	"github.com/sluice-cni/sluice/plugins/main/dummy"
	hostdevice "github.com/sluice-cni/sluice/plugins/main/host-device"
	"github.com/sluice-cni/sluice/plugins/main/ipvlan"
	"github.com/sluice-cni/sluice/plugins/main/loopback"
	"github.com/sluice-cni/sluice/plugins/main/macvlan"
	"github.com/sluice-cni/sluice/plugins/main/ptp"
	"github.com/sluice-cni/sluice/plugins/main/tap"
	"github.com/sluice-cni/sluice/plugins/main/vlan"
	"github.com/sluice-cni/sluice/plugins/meta/bandwidth"
	"github.com/sluice-cni/sluice/plugins/meta/firewall"
	"github.com/sluice-cni/sluice/plugins/meta/flannel"
	"github.com/sluice-cni/sluice/plugins/meta/portmap"
	"github.com/sluice-cni/sluice/plugins/meta/sbr"
	"github.com/sluice-cni/sluice/plugins/meta/tuning"
	"github.com/sluice-cni/sluice/plugins/meta/vrf"
)

// plugin returns the plugin of that name with its real dependencies, nil when
// there is none. Nothing is opened before a verb needs it.
func plugin(name string) *cniskel.Plugin {
	switch name {
	case bridge.Name:
		return newBridge()
	case ptp.Name:
		return newPTP()
	case portmap.Name:
		return newPortmap()
	case tuning.Name:
		return newTuning()
	case bandwidth.Name:
		return newBandwidth()
	case firewall.Name:
		return newFirewall()
	case flannel.Name:
		return newFlannel()
	case hostdevice.Name:
		return hostdevice.New(hostdevice.Deps{IPAM: ipam(), Records: attachments.Open(attachments.DefaultDir)})
	case tap.Name:
		return tap.New(tap.Deps{IPAM: ipam(), Records: attachments.Open(attachments.DefaultDir)})
	case macvlan.Name:
		return macvlan.New(macvlan.Deps{IPAM: ipam(), Records: attachments.Open(attachments.DefaultDir)})
	case ipvlan.Name:
		return ipvlan.New(ipvlan.Deps{IPAM: ipam(), Records: attachments.Open(attachments.DefaultDir)})
	case vlan.Name:
		return vlan.New(vlan.Deps{IPAM: ipam(), Records: attachments.Open(attachments.DefaultDir)})
	case dummy.Name:
		return dummy.New(dummy.Deps{IPAM: ipam(), Records: attachments.Open(attachments.DefaultDir)})
	case loopback.Name:
		return loopback.New(loopback.Deps{})
	case hostlocal.Name:
		return hostlocal.New(hostlocal.Deps{})
	case static.Name:
		return static.New()
	case sbr.Name:
		return sbr.New(sbr.Deps{Records: attachments.Open(attachments.DefaultDir)})
	case vrf.Name:
		return vrf.New(vrf.Deps{Records: attachments.Open(attachments.DefaultDir)})
	}
	return nil
}

// ipam runs the IPAM plugins that this program is in-process, others by exec.
func ipam() *delegate.Runner {
	return &delegate.Runner{InProcess: map[string]*cniskel.Plugin{
		hostlocal.Name: hostlocal.New(hostlocal.Deps{}),
		static.Name:    static.New(),
	}}
}
