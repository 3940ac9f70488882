// SPDX-License-Identifier: Apache-2.0

// Package gc is the verb GC as all plugins that keep attachment records run it.
// Main and meta plugins use it. It calls their functions and touches neither
// devices nor maps nor rules itself.
package gc

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// Collector is a plugin's GC.
type Collector struct {
	// Section limits GC to records that have this section, and to those that
	// cannot be read. Empty: all records of the network.
	Section string
	// List returns the attachment records of a network, or of all networks for
	// an empty name.
	List func(network string) ([]*attachments.Record, error)
	// Detach removes what the plugin made for an attachment, and its section.
	// call names the attachment. It has no namespace, since the recorded path
	// may belong to another pod by now.
	Detach func(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error
	// Sweep removes what no attachment explains. valid are the attachments of
	// the network that the runtime knows. Nil: there is nothing to sweep.
	Sweep func(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error
}

// GC detaches the attachments of the network that the runtime no longer lists,
// then sweeps. It never stops at the first error, and never detaches another
// network's attachments. A configuration with an odd value is good enough if it
// has a name.
func (c Collector) GC(ctx context.Context, a *cniskel.Args) error {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil && conf.Name == "" {
		return err
	}
	valid, err := cniconf.ValidRefs(a.StdinData, conf.Name)
	if err != nil {
		return err
	}
	records, err := c.List(conf.Name)
	errs := []error{cnierr.Wrap(cnierr.CodeState, err, "list attachment records")}
	for _, rec := range records {
		if valid[rec.ID] || !c.concerns(rec) {
			continue
		}
		call := *a
		call.ContainerID, call.IfName, call.Netns = rec.ContainerID, rec.IfName, ""
		errs = append(errs, c.Detach(ctx, &call, rec))
	}
	if c.Sweep != nil {
		errs = append(errs, c.Sweep(ctx, a, conf.Name, valid))
	}
	return errors.Join(errs...)
}

// concerns reports whether the plugin may have made something for the attachment.
func (c Collector) concerns(rec *attachments.Record) bool {
	found, _ := rec.Section(c.Section, nil)
	return c.Section == "" || found || rec.Corrupt
}
