// SPDX-License-Identifier: Apache-2.0

package multicall

import (
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/delegate"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/store"
	hostlocal "github.com/sluice-cni/sluice/plugins/ipam/host-local"
	"github.com/sluice-cni/sluice/plugins/ipam/static"
	"github.com/sluice-cni/sluice/plugins/main/dummy"
	hostdevice "github.com/sluice-cni/sluice/plugins/main/host-device"
	"github.com/sluice-cni/sluice/plugins/main/ipvlan"
	"github.com/sluice-cni/sluice/plugins/main/loopback"
	"github.com/sluice-cni/sluice/plugins/main/macvlan"
	"github.com/sluice-cni/sluice/plugins/main/tap"
	"github.com/sluice-cni/sluice/plugins/main/vlan"
	"github.com/sluice-cni/sluice/plugins/meta/sbr"
	"github.com/sluice-cni/sluice/plugins/meta/vrf"
)

// Light returns the plugin of that name with its real dependencies, if it is one
// that needs neither BPF nor anything else that is slow to make ready; nil
// otherwise. Nothing is opened before a verb needs it.
func Light(name string) *cniplugin.Plugin {
	switch name {
	case hostdevice.Name:
		return hostdevice.New(hostdevice.Deps{IPAM: IPAM(), Records: store.Open(store.DefaultDir)})
	case tap.Name:
		return tap.New(tap.Deps{IPAM: IPAM(), Records: store.Open(store.DefaultDir)})
	case macvlan.Name:
		return macvlan.New(macvlan.Deps{IPAM: IPAM(), Records: store.Open(store.DefaultDir)})
	case ipvlan.Name:
		return ipvlan.New(ipvlan.Deps{IPAM: IPAM(), Records: store.Open(store.DefaultDir)})
	case vlan.Name:
		return vlan.New(vlan.Deps{IPAM: IPAM(), Records: store.Open(store.DefaultDir)})
	case dummy.Name:
		return dummy.New(dummy.Deps{IPAM: IPAM(), Records: store.Open(store.DefaultDir)})
	case loopback.Name:
		return loopback.New(loopback.Deps{})
	case hostlocal.Name:
		return hostlocal.New(hostlocal.Deps{})
	case static.Name:
		return static.New()
	case sbr.Name:
		return sbr.New(sbr.Deps{Records: store.Open(store.DefaultDir)})
	case vrf.Name:
		return vrf.New(vrf.Deps{Records: store.Open(store.DefaultDir)})
	}
	return nil
}

// IPAM runs the IPAM plugins, which all programs of interface plugins contain, in-process, others by exec.
func IPAM() *delegate.Runner {
	return &delegate.Runner{Beside: []string{install.Link, install.Multicall}, InProcess: map[string]*cniplugin.Plugin{
		hostlocal.Name: hostlocal.New(hostlocal.Deps{}),
		static.Name:    static.New(),
	}}
}
