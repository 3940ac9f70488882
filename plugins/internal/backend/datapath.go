// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
)

// Opener opens the node's datapath.
type Opener struct {
	// Open returns the node's datapath and loads it when nothing is loaded. An
	// error that is loader.ErrUnavailable carries the probe's reason.
	Open func(ctx context.Context, a *cniskel.Args) (loader.Interface, error)
	// OpenExisting never loads: loader.ErrNotLoaded when nothing is.
	OpenExisting func(ctx context.Context, a *cniskel.Args) (loader.Interface, error)
	// Prefix begins the messages of errors, as in "ipMasq: ".
	Prefix string
}

// OpenError gives an error of Open or OpenExisting its CNI code: its own when it
// has one (a mistake in the node's configuration), unavailable when eBPF cannot
// run on this node.
func (o Opener) OpenError(err error, unavailable uint) error {
	var coded *cnierr.Error
	switch {
	case errors.As(err, &coded):
		return err
	case errors.Is(err, loader.ErrUnavailable):
		return cnierr.Wrap(unavailable, err, "%sthe ebpf backend cannot run on this node", o.Prefix)
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "%sopen the datapath", o.Prefix)
}

// Load is Open with CNI errors. The caller must Close the datapath.
func (o Opener) Load(ctx context.Context, a *cniskel.Args) (loader.Interface, error) {
	dp, err := o.Open(ctx, a)
	return dp, o.OpenError(err, cnierr.CodeNoDatapath)
}

// Existing calls f with the datapath. Where nothing is loaded there is nothing
// to do. Errors of opening are CNI errors.
func (o Opener) Existing(ctx context.Context, a *cniskel.Args, f func(loader.Interface) error) error {
	dp, err := o.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return o.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	return f(dp)
}

// ServeClients lets a pod without features use the node's hostPorts. names are the node's devices that lead to it. An ADD that has nothing else to do
// with the datapath does not fail for it: what is missing is there from the next look at the node on.
func (o Opener) ServeClients(ctx context.Context, a *cniskel.Args, names ...string) {
	err := o.Existing(ctx, a, func(dp loader.Interface) error { return IgnoreNotLoaded(dp.ServeClients(ctx, names)) })
	if err != nil {
		a.Log.Warn("the pod may not reach hostPorts of this node", log.Error(err))
	}
}

// Check is Existing for a CHECK: where nothing is loaded, missing says what is
// not there, with code 102.
func (o Opener) Check(ctx context.Context, a *cniskel.Args, missing string, f func(loader.Interface) error) error {
	dp, err := o.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.Wrap(cnierr.CodeCheck, err, "%s", missing)
	}
	if err != nil {
		return o.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	return f(dp)
}

// Status opens the datapath as an ADD would, which loads it if need be. It says
// with code 50 why that fails.
func (o Opener) Status(ctx context.Context, a *cniskel.Args) error {
	dp, err := o.Open(ctx, a)
	if err != nil {
		return o.OpenError(err, cnierr.CodeUnavailable)
	}
	return cnierr.Wrap(cnierr.CodeUnavailable, dp.Close(), "%sclose the datapath", o.Prefix)
}

// Sweep lets the datapath remove the entries of owners that no attachment
// explains. An owner is kept when the runtime lists it (valid), when a record of
// any network names it, or when its device exists: without a record, nothing
// tells which network it belongs to. list returns the records of all networks
// for an empty name.
func (o Opener) Sweep(ctx context.Context, a *cniskel.Args, list func(network string) ([]*attachments.Record, error), valid map[attachments.ID]bool) error {
	err := o.Existing(ctx, a, func(dp loader.Interface) error {
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
		return cnierr.Wrap(cnierr.CodeKernel, dp.GC(ctx, orRecorded(keep, list)), "sweep the datapath")
	})
	if errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	return err
}

// orRecorded adds the owners that have a record. It reads the records when the
// function is first called: the datapath then holds its writers' lock, and an
// ADD writes its record before it takes that lock.
func orRecorded(keep map[uint64]bool, list func(network string) ([]*attachments.Record, error)) func(owner uint64) bool {
	var read, unreadable bool
	return func(owner uint64) bool {
		if !read {
			read = true
			records, err := list("")
			unreadable = err != nil
			for _, rec := range records {
				keep[rec.Owner()] = true
			}
		}
		return unreadable || keep[owner]
	}
}

// EnableError gives an error of Enable or CheckFree its CNI code and a sentence. An
// address that the pod of another attachment has is a conflict that names the
// container: list returns the records of all networks for an empty name.
func EnableError(err error, list func(network string) ([]*attachments.Record, error), format string, a ...any) error {
	var held *loader.AddrHeldError
	if !errors.As(err, &held) {
		return cnierr.Wrap(cnierr.CodeKernel, err, format, a...)
	}
	var holder *attachments.ID
	records, _ := list("") // what cannot be read names no pod
	for _, rec := range records {
		if rec.Owner() == held.Owner {
			holder = &rec.ID
		}
	}
	return AddrHeld(held.Addr, held.IfName, holder, err)
}

// AddrHeld is the error of code 103 for an address that another pod has. device is
// the pod's host veth, holder its attachment, nil if no record names it.
func AddrHeld(addr netip.Addr, device string, holder *attachments.ID, cause error) error {
	who := "a pod without an attachment record has it, on device " + device
	if holder != nil {
		who = fmt.Sprintf("container %s has it on %s (network %q, device %s)", holder.ContainerID, holder.IfName, holder.Network, device)
	}
	msg := fmt.Sprintf("address %s: %s; delete that attachment, or ask for another address", addr, who)
	if cause == nil {
		return cnierr.New(cnierr.CodeConflict, msg, "")
	}
	return cnierr.Wrap(cnierr.CodeConflict, cause, "%s", msg)
}

// IgnoreNotLoaded takes a datapath whose maps another process has removed for
// one that was never loaded: it holds nothing.
func IgnoreNotLoaded(err error) error {
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	return err
}

// ResolveError gives an error of loader.Resolve its CNI code: its own when it
// has one, that of a bad namespace, else the given one.
func ResolveError(err error, ifname string, code uint) error {
	var coded *cnierr.Error
	if errors.As(err, &coded) {
		return err
	}
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		code = cnierr.CodeNetNS
	}
	return cnierr.Wrap(code, err, "find the host end of %s", ifname)
}
