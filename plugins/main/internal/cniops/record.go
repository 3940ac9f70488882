// SPDX-License-Identifier: Apache-2.0

package cniops

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Record is a plugin's section of one attachment record.
type Record struct {
	Dir     *attachments.Dir
	ID      attachments.ID
	Section string
}

// Write records what an ADD is about to do.
func (r Record) Write(netns string, data any) error {
	return cnierr.Wrap(cnierr.CodeState, r.Dir.Begin(r.ID, netns, r.Section, data), "record the attachment")
}

// Begin is Write for the first time: a rollback removes the section.
func (r Record) Begin(rb *rollback.Stack, netns string, data any) error {
	if err := r.Write(netns, data); err != nil {
		return err
	}
	rb.Push("attachment record", func(context.Context) error { return r.Dir.Remove(r.ID, r.Section) })
	return nil
}

// Complete records that the ADD is done.
func (r Record) Complete(data any) error {
	return cnierr.Wrap(cnierr.CodeState, r.Dir.Complete(r.ID, r.Section, data), "complete the attachment record")
}

// Detach ends the attachment: it releases the addresses, calls remove, which takes back what the ADD made, and then
// removes the section. It goes on after an error, and the section stays while something is left.
// ipamConf is the configuration's ipam section, and recorded the record's.
func (r Record) Detach(ctx context.Context, p ipam.Plugin, a *cniskel.Args, ipamConf, recorded json.RawMessage, remove func() error) error {
	if err := errors.Join(ipam.Release(ctx, p, a, ipamConf, recorded), remove()); err != nil {
		return err
	}
	return cnierr.Wrap(cnierr.CodeState, r.Dir.Remove(r.ID, r.Section), "remove the attachment record")
}
