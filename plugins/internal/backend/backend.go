// SPDX-License-Identifier: Apache-2.0

// Package backend is what portmap, firewall and the masquerade of main plugins
// share, which work by eBPF, netfilter tables or firewalld: what a backend is,
// which one an attachment gets, and who takes over when eBPF cannot run. Other
// plugins that use the datapath take Opener from here. It knows no plugin's
// configuration and changes nothing itself.
package backend

import (
	"context"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// Base is the part of a backend that depends on no plugin's types.
type Base interface {
	// Name is the backend's word in configurations and records.
	Name() string
	// Sweep removes what no attachment explains. valid are the attachments of
	// the network that the runtime knows.
	Sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error
	// Status says why an ADD would fail now.
	Status(ctx context.Context, a *cniskel.Args) error
}

// Backend carries out requests of attachments. Held is what an attachment's
// record says that the backend holds for it.
//
// ADD takes the backend that the configuration names, or the first that can run.
// DEL and CHECK take those that the attachment's record names. DEL without a
// record takes all.
type Backend[Request, Held any] interface {
	Base
	// Remove takes out what the backend holds for an attachment. The zero value
	// of held means that there is no record: the backend then removes all that it
	// can find. Missing is success.
	Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, held Held) error
	// Check compares what is there with the request. It changes nothing. A
	// difference has code 102.
	Check(ctx context.Context, a *cniskel.Args, r Request) error
}

// Chained is a Backend of a chained plugin, whose ADD is one request.
type Chained[Request, Held, Section any] interface {
	Backend[Request, Held]
	// Prepare opens what the job needs and finds what rules it out. Errors are
	// CNI errors. It has no effect on the pod.
	Prepare(ctx context.Context, a *cniskel.Args, r Request) (Job[Section], error)
}

// Job is a prepared ADD. The caller must Close it.
type Job[Section any] interface {
	// Apply carries out the request. It pushes what takes each effect back
	// before the effect. The caller rolls back on an error, here or later.
	Apply(ctx context.Context, rb *rollback.Stack) error
	// Record adds to the attachment's record what Remove has to know.
	Record(s *Section)
	Close() error
}
