// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/sluice-cni/sluice/cmd/internal/multicall"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/plugins/main/bridge"
	"github.com/sluice-cni/sluice/plugins/main/ptp"
	"github.com/sluice-cni/sluice/plugins/meta/bandwidth"
	"github.com/sluice-cni/sluice/plugins/meta/firewall"
	"github.com/sluice-cni/sluice/plugins/meta/flannel"
	"github.com/sluice-cni/sluice/plugins/meta/portmap"
	"github.com/sluice-cni/sluice/plugins/meta/tuning"
)

// plugin returns the plugin of that name with its real dependencies, nil when
// there is none. Nothing is opened before a verb needs it.
func plugin(name string) *cniplugin.Plugin {
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
	}
	return multicall.Light(name)
}
