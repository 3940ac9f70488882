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
)

// Base is the part of a plugin's backends that depends on none of its types. The
// plugin adds these, all of whose errors are CNI errors:
//
//   - Prepare opens what an ADD needs and finds what rules it out. It has no
//     effect on the pod. It returns a job, which the caller must Close. The job's
//     Apply pushes what takes each effect back before the effect. The caller
//     rolls back on an error, there or later.
//   - Remove takes out what the backend holds for an attachment, as the record
//     says. Without a record it removes all that it can find. Missing is success.
//   - Check compares what is there with the request. It changes nothing. A
//     difference has code 102.
//
// ADD takes the backend that the configuration names, or the first that can run.
// DEL and CHECK take those that the attachment's record names. DEL without a
// record takes all.
type Base interface {
	// Name is the backend's word in configurations and records.
	Name() string
	// Sweep removes what no attachment explains. valid are the attachments of
	// the network that the runtime knows.
	Sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error
	// Status says why an ADD would fail now.
	Status(ctx context.Context, a *cniskel.Args) error
}
