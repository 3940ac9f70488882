// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"testing"

	"github.com/sluice-cni/sluice/loader"
)

// The number of names does not grow with the pods.
func TestDevicesOf(t *testing.T) {
	t.Parallel()
	for want, ep := range map[string]loader.Endpoint{
		"cni0":  {HostIfindex: 7, RouteIfindex: 3, RouteIfName: "cni0"},
		"veth+": {HostIfindex: 7, RouteIfindex: 7, RouteIfName: "veth5ee2eed6"},
		"":      {HostIfindex: 7, RouteIfindex: 7, RouteIfName: "cali1234"},
	} {
		if got := devicesOf(ep); got != want {
			t.Errorf("%+v: %q", ep, got)
		}
	}
}
