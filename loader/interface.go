// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"io"
	"iter"
	"net"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// Interface has the methods of Datapath, which says what each does. Callers take it, so that their tests can give them a loadertest.Datapath.
type Interface interface {
	io.Closer

	// For plugins.
	CheckFree(ctx context.Context, owner uint64, addrs []netip.Prefix) error
	Enable(ctx context.Context, ep Endpoint, f Feature) error
	Disable(ctx context.Context, owner uint64, f Feature, held Held) error
	CheckEndpoint(ctx context.Context, ep Endpoint, f Feature) error
	SetMAC(ctx context.Context, owner uint64, mac net.HardwareAddr, held Held) error
	ServeClients(ctx context.Context, names []string) error
	HostPortLimits() hostport.Limits
	SetHostPorts(ctx context.Context, owner uint64, before []hostport.Key, ports []hostport.Mapping, behind ...func() []uint64) error
	RemoveHostPorts(ctx context.Context, owner uint64, keys []hostport.Key) error
	CheckHostPorts(ctx context.Context, owner uint64, ports []hostport.Mapping, behind ...func() []uint64) error
	ClaimHostPorts(ctx context.Context, owner uint64, keys []hostport.Key, behind ...func() []uint64) error
	ReleaseHostPorts(ctx context.Context, owner uint64, keys []hostport.Key) error
	HasFQ() (bool, string)
	PodByLink(ifindex int) bool
	SetRateLimit(ctx context.Context, s RateLimit) error
	RemoveRateLimit(ctx context.Context, owner uint64, nets []netip.Prefix) error
	CheckRateLimit(ctx context.Context, s RateLimit) error
	GC(ctx context.Context, keep func(owner uint64) bool) error

	// For the node agent.
	BeginNetworkPolicy(ctx context.Context) (NetworkPolicyTables, error)

	// For the operator's tool.
	Sync(ctx context.Context) error
	Unload(ctx context.Context) error
	DenyAdd(ctx context.Context, networks []netip.Prefix) error
	DenyDelete(ctx context.Context, networks []netip.Prefix) error
	RelearnFlows(ctx context.Context, match func(Flow) bool) (int, error)
	FlushFlows(ctx context.Context, match func(Flow) bool) (int, error)
	Status(ctx context.Context) (*Status, error)
	StatusCounted(ctx context.Context, counted map[string]conntrack.Use) (*Status, error)
	Endpoints(ctx context.Context) ([]EndpointStatus, error)
	HostPorts(ctx context.Context) ([]hostport.Entry, error)
	Flows(ctx context.Context, f FlowFilter) iter.Seq2[Flow, error]
	RateLimits(ctx context.Context) ([]RateLimitStatus, error)
	Policies(ctx context.Context) ([]PolicyStatus, error)
	NetworkPolicies(ctx context.Context) ([]NetworkPolicyStatus, error)
	Events(ctx context.Context) iter.Seq2[DropEvent, error]
	Drops(ctx context.Context) ([]Drop, error)
	DropSums(ctx context.Context) (map[drops.Reason]drops.Sum, error)
	ConnectionCounts(ctx context.Context) (conntrack.Counts, error)
	Deny(ctx context.Context) (*DenyStatus, error)
	LoadRequest(ctx context.Context) (loadapi.LoadRequest, error)
	Hooks(indices []int) ([]HookPrograms, error)
}

var _ Interface = (*Datapath)(nil)
