// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
)

// checkServed returns an error if the datapath does not serve a pod that it served, as after the bpffs was lost: what the pods had in
// the maps is gone with the pins, and only an ADD brings it back.
func (a *app) checkServed(ctx context.Context) error {
	lost, err := a.unserved(ctx)
	if err != nil || len(lost) == 0 {
		return err
	}
	facts := doctor.Facts{}
	if facts.Leftovers, err = a.ops.Leftovers(ctx); err != nil {
		return err
	}
	again, err := a.unserved(ctx) // a DEL may have been under way
	lost = slices.DeleteFunc(again, func(r *attachments.Record) bool {
		return facts.IsLeft(r) || !slices.ContainsFunc(lost, func(o *attachments.Record) bool { return o.ID == r.ID })
	})
	if err != nil || len(lost) == 0 {
		return err
	}
	return fmt.Errorf("%s lost what the datapath had of them, such as %s: their ports, masquerading or admission do not work. Delete and add these pods again",
		plural(len(lost), "attachment"), lost[0].ID)
}

func (a *app) unserved(ctx context.Context) ([]*attachments.Record, error) {
	records, err := a.node.Records()
	if err != nil {
		return nil, fmt.Errorf("read the attachment records: %w", err)
	}
	var endpoints []loader.EndpointStatus
	dp, err := a.node.Datapath(ctx)
	if err == nil {
		endpoints, err = dp.Endpoints(ctx)
		err = errors.Join(err, dp.Close())
	}
	if err != nil && !errors.Is(err, loader.ErrNotLoaded) {
		return nil, err
	}
	return doctor.Unserved(records, endpoints), nil
}
