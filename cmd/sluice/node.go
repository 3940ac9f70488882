// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"iter"
	"net/netip"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/pools"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/choice"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
)

// node is the machine the tool looks at.
type node interface {
	// Datapath opens what is loaded; loader.ErrNotLoaded when nothing is.
	Datapath(ctx context.Context) (datapath, error)
	// Load opens the datapath, and loads it if need be.
	Load(ctx context.Context) (datapath, error)
	// Clear removes what is left of a datapath that is not loaded; nothing there is success.
	Clear(ctx context.Context) error
	// Decision returns what the last attempt to load found, as far as it is
	// known while nothing is loaded; loader.ErrNotLoaded without an attempt.
	Decision(ctx context.Context) (*loader.Status, error)
	// Places returns where pins are looked for, and other mount namespaces that
	// have some.
	Places() ([]loader.Place, error)
	// Choices returns which netfilter tables are used where eBPF is not, by what
	// was asked for.
	Choices() (map[string]netfilter.Choice, error)
	// Records returns the attachment records of all networks.
	Records() ([]*attachments.Record, error)
	// Conflicts returns the hostPorts of records that take what sockets of the node wait for.
	Conflicts(records []*attachments.Record) ([]nodeports.Conflict, error)
	// PodName returns the name that the runtime gave to an attachment's pod, or nothing.
	PodName(id attachments.ID) (namespace, name string)
	// VerbTimes returns how long the plugins' verbs took since the boot.
	VerbTimes() ([]verbtimes.Histogram, error)
	// Pools returns the pools that pods of the node have addresses of.
	Pools() ([]pools.Pool, error)
}

// datapath is what the tool needs of *loader.Datapath.
type datapath interface {
	reader
	Sync(ctx context.Context) error
	Unload(ctx context.Context) error
	DenyAdd(ctx context.Context, networks []netip.Prefix) error
	DenyDelete(ctx context.Context, networks []netip.Prefix) error
	RelearnFlows(ctx context.Context, match func(loader.Flow) bool) (int, error)
	FlushFlows(ctx context.Context, match func(loader.Flow) bool) (int, error)
	Close() error
}

// reader is the part that changes nothing.
type reader interface {
	Status(ctx context.Context) (*loader.Status, error)
	StatusCounted(ctx context.Context, counted map[string]conntrack.Use) (*loader.Status, error)
	Endpoints(ctx context.Context) ([]loader.EndpointStatus, error)
	HostPorts(ctx context.Context) ([]hostport.Entry, error)
	Flows(ctx context.Context, f loader.FlowFilter) iter.Seq2[loader.Flow, error]
	RateLimits(ctx context.Context) ([]loader.RateLimitStatus, error)
	Policies(ctx context.Context) ([]loader.PolicyStatus, error)
	Events(ctx context.Context) iter.Seq2[loader.DropEvent, error]
	Drops(ctx context.Context) ([]loader.Drop, error)
	DropSums(ctx context.Context) (map[drops.Reason]drops.Sum, error)
	ConnectionCounts(ctx context.Context) (conntrack.Counts, error)
	Deny(ctx context.Context) (*loader.DenyStatus, error)
	LoadRequest(ctx context.Context) (loadapi.LoadRequest, error)
	Hooks(indices []int) ([]loader.HookPrograms, error)
}

var _ datapath = (*loader.Datapath)(nil)

// realNode is the node this process runs on.
type realNode struct{}

func (realNode) Datapath(ctx context.Context) (datapath, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return nil, err
	}
	dp, err := doctor.Open(ctx, conf)
	if err != nil {
		return nil, err
	}
	return dp, nil
}

func (realNode) Load(ctx context.Context) (datapath, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return nil, err
	}
	dp, err := loader.Open(ctx, doctor.Options(conf))
	if err != nil {
		return nil, err
	}
	return dp, nil
}

func (realNode) Clear(ctx context.Context) error {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return err
	}
	return loader.Unload(ctx, doctor.Options(conf))
}

func (realNode) Decision(ctx context.Context) (*loader.Status, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return nil, err
	}
	return loader.Decision(ctx, doctor.Options(conf))
}

func (realNode) Places() ([]loader.Place, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return nil, err
	}
	return loader.Places(doctor.Options(conf))
}

func (realNode) Choices() (map[string]netfilter.Choice, error) { return choice.Made("") }

func (realNode) Records() ([]*attachments.Record, error) {
	return attachments.Open(attachments.DefaultDir).List("")
}

func (realNode) Conflicts(records []*attachments.Record) ([]nodeports.Conflict, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil || conf.HostPortConflicts == nodeconf.ConflictsAllow {
		return nil, err
	}
	return nodeports.Find(nodeports.Recorded(records))
}

func (realNode) PodName(id attachments.ID) (namespace, name string) { return podName(cniResults(), id) }

func (realNode) VerbTimes() ([]verbtimes.Histogram, error) {
	return verbtimes.Read(verbtimes.DefaultPath)
}

func (realNode) Pools() ([]pools.Pool, error) { return pools.Read(pools.DefaultPlaces()) }

// withDatapath calls f with the loaded datapath. When nothing is loaded it
// calls empty instead, which is not an error.
func (a *app) withDatapath(ctx context.Context, f func(datapath) error, empty func() error) error {
	dp, err := a.node.Datapath(ctx)
	if errors.Is(err, loader.ErrNotLoaded) {
		return empty()
	}
	if err != nil {
		return err
	}
	return errors.Join(f(dp), dp.Close())
}

// notLoaded is the sentence for people when there is nothing to show.
const notLoaded = "Nothing is loaded: no pod of this node uses the eBPF datapath yet."
