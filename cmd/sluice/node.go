// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/pools"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/choice"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
)

// node is the machine the tool looks at.
type node interface {
	// Datapath opens what is loaded; loader.ErrNotLoaded when nothing is.
	Datapath(ctx context.Context) (loader.Interface, error)
	// Load opens the datapath, and loads it if need be.
	Load(ctx context.Context) (loader.Interface, error)
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

// realNode is the node this process runs on.
type realNode struct{}

func (realNode) Datapath(ctx context.Context) (loader.Interface, error) {
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

func (realNode) Load(ctx context.Context) (loader.Interface, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return nil, err
	}
	if err := conf.EBPFRefused(); err != nil {
		return nil, fmt.Errorf("%w: %w", loader.ErrUnavailable, err)
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
func (a *app) withDatapath(ctx context.Context, f func(loader.Interface) error, empty func() error) error {
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
