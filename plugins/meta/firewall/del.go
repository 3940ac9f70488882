// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// del needs nothing but the attachment's name: neither prevResult, nor the
// namespace, nor a configuration that ADD would accept.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return err
	}
	return p.withdraw(ctx, a, a.Ref(conf.Name))
}

// detach is DEL for an attachment that only its record names.
func (p *plugin) detach(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error {
	return p.withdraw(ctx, call, rec.ID)
}

// withdraw takes out what the attachment's backends hold, and removes the record
// once nothing of it is left. Missing is success.
func (p *plugin) withdraw(ctx context.Context, a *cniskel.Args, ref attachments.ID) error {
	holders, s := p.recorded(a, ref)
	if len(holders) == 0 {
		if prevAddrs(a) == nil {
			return nil // the pod was not admitted
		}
		// The pod has addresses, and an ADD of Sluice would have recorded them. So the record is that of other plugins of the
		// chain, and upstream's firewall admitted the pod.
		holders = p.chooser().All(a)
	}
	var errs []error
	for _, b := range holders {
		errs = append(errs, b.Remove(ctx, a, ref, s))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := p.Records.Remove(ref, Name); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "remove the attachment record")
	}
	return nil
}
