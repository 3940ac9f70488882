// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"net"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/store"
)

// Endpoint is one pod device as the datapath knows it.
type Endpoint struct {
	Ref          store.Ref
	HostIfindex  int    // host end of the pod's device
	RouteIfindex int    // device its packets are routed from: the bridge, else the host end; 0 means HostIfindex
	HostIfName   string // for messages
	MAC          net.HardwareAddr
	GatewayMAC   net.HardwareAddr // of RouteIfindex
	MTU          int
	Addrs        []netip.Prefix // the pod's addresses with the length of its own subnet
}

// Feature is a service that an endpoint gets. Several plugins turn on one each.
type Feature uint32

// The features.
const (
	FeatureMasquerade = Feature(endpoint.FlagMasquerade) // connections the pod opens leave with the node's address
	FeatureAdmit      = Feature(endpoint.FlagAdmit)      // its packets carry the admit mark
	FeaturePublish    = Feature(endpoint.FlagPublish)    // it has published ports
)

// Enable turns on a feature for ep and attaches the programs to its device. Features of the same owner add up; calling it
// again changes nothing. It also brings uplinks and node addresses up to date. On error nothing of it is left.
func (d *Datapath) Enable(ctx context.Context, ep Endpoint, f Feature) error { return nil }

// Disable turns off a feature of owner. With the last one its entries, counters and programs go. Missing is success.
func (d *Datapath) Disable(ctx context.Context, owner uint64, f Feature) error { return nil }

// SetMAC tells the datapath that the pod's device has another hardware address.
func (d *Datapath) SetMAC(ctx context.Context, owner uint64, mac net.HardwareAddr) error { return nil }

// CheckEndpoint compares what Enable(ep, f) has made with what is there. The error wraps ErrDiffers.
func (d *Datapath) CheckEndpoint(ctx context.Context, ep Endpoint, f Feature) error { return nil }

// Resolve finds what Enable needs to know of the device ifname in the namespace at netnsPath: its host end, the device its
// packets are routed from, hardware addresses, MTU and addresses. Ref is left to the caller. It is for plugins that follow a
// main plugin that is not ours.
func Resolve(ctx context.Context, netnsPath, ifname string) (Endpoint, error) {
	return Endpoint{}, nil
}
