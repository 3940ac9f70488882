// SPDX-License-Identifier: Apache-2.0

// Package dpchain is what the chained plugins with a part in the datapath have
// in common: the codes of its errors, and GC. It owns no state.
package dpchain

import (
	"context"
	"errors"
	"io"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netns"
)

// OpenError gives an error of loader.Open its CNI code: unavailable when the
// back end cannot run on this node, its own when it has one (the node's
// configuration cannot be read, for one).
func OpenError(err error, unavailable uint) error {
	var coded *cnierr.Error
	switch {
	case errors.As(err, &coded):
		return err
	case errors.Is(err, loader.ErrUnavailable):
		return cnierr.Wrap(unavailable, err, "the ebpf back end cannot run on this node")
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "open the datapath")
}

// ResolveError gives an error of loader.Resolve its CNI code: that of a bad
// namespace, else the given one.
func ResolveError(err error, ifname string, code uint) error {
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		code = cnierr.CodeNetNS
	}
	return cnierr.Wrap(code, err, "find the host end of %s", ifname)
}

// Datapath is what GC needs of *loader.Datapath.
type Datapath interface {
	Endpoints(ctx context.Context) ([]loader.EndpointStatus, error)
	GC(ctx context.Context, keep func(owner uint64) bool) error
	io.Closer
}

// Collector is a plugin's GC.
type Collector struct {
	// List returns the attachment records of a network, of all when it is empty.
	List func(network string) ([]*attachments.Record, error)
	// Withdraw takes out what the plugin holds for an attachment.
	Withdraw func(ctx context.Context, a *cniskel.Args, ref attachments.Ref) error
	// Sweep removes what no attachment explains. valid are those of the network
	// that the runtime knows.
	Sweep func(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.Ref]bool) error
}

// GC withdraws the attachments of this network that the runtime no longer
// lists, then sweeps. It never stops at the first error.
func (c Collector) GC(ctx context.Context, a *cniskel.Args) error {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return err
	}
	valid, err := cniconf.ValidRefs(a.StdinData, conf.Name)
	if err != nil {
		return err
	}
	records, err := c.List(conf.Name)
	errs := []error{cnierr.Wrap(cnierr.CodeState, err, "list attachment records")}
	for _, rec := range records {
		if !valid[rec.Ref] {
			errs = append(errs, c.Withdraw(ctx, a, rec.Ref))
		}
	}
	errs = append(errs, c.Sweep(ctx, a, conf.Name, valid))
	return errors.Join(errs...)
}

// Sweeper lets the datapath drop what no attachment explains.
type Sweeper[D Datapath] struct {
	// List returns the attachment records of a network, of all when it is empty.
	List func(network string) ([]*attachments.Record, error)
	// Open returns the datapath if one is loaded (loader.OpenExisting).
	Open func(ctx context.Context, a *cniskel.Args) (D, error)
}

// Sweep removes leftovers from the maps. An owner is kept when the runtime
// lists it, when a record of any network names it, or when its device is there
// still: without a record nobody can tell whose network it is.
func (s Sweeper[D]) Sweep(ctx context.Context, a *cniskel.Args, valid map[attachments.Ref]bool) error {
	dp, err := s.Open(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) || errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	endpoints, err := dp.Endpoints(ctx)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "list endpoints")
	}
	keep := make(map[uint64]bool, len(valid)+len(endpoints))
	for ref := range valid {
		keep[ref.Owner()] = true
	}
	for _, ep := range endpoints {
		if ep.HostIfName != "" {
			keep[ep.Owner] = true
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, dp.GC(ctx, s.orRecorded(keep)), "sweep the datapath")
}

// orRecorded adds the owners that have a record. The records are read when the
// function is first called: the datapath then holds its writers' lock, and an
// ADD has written its record before it took that lock.
func (s Sweeper[D]) orRecorded(keep map[uint64]bool) func(owner uint64) bool {
	var read, unreadable bool
	return func(owner uint64) bool {
		if !read {
			read = true
			records, err := s.List("")
			unreadable = err != nil
			for _, rec := range records {
				keep[rec.Owner()] = true
			}
		}
		return unreadable || keep[owner]
	}
}
