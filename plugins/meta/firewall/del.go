// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/plugins/meta/internal/chained"
)

// del needs nothing but the attachment's name: neither prevResult, nor the
// namespace, nor a configuration that ADD would accept.
func (p *plugin) del(ctx context.Context, a *cniplugin.Args) error {
	var conf cniconf.Common
	if err := cniconf.Load(a.StdinData, &conf); err != nil {
		return err
	}
	return p.collect(ctx, a, chained.Ref(conf.Name, a))
}

// collect is DEL for an attachment that only its record names.
func (p *plugin) collect(ctx context.Context, a *cniplugin.Args, ref store.Ref) error {
	return p.withdraw(ctx, a, ref, p.held(ref))
}

// held is what a record says of an attachment.
type held int

const (
	unknown held = iota // no record that can be read
	none                // the pod was not admitted
	some                // it was, or was about to be
)

func (p *plugin) held(ref store.Ref) held {
	rec, err := p.Records.Load(ref)
	if err != nil || rec.Corrupt {
		return unknown
	}
	if ok, _ := rec.Section(Name, nil); !ok {
		return none
	}
	return some
}

// withdraw turns the feature off, and removes the record once nothing of it is
// left. Missing is success.
func (p *plugin) withdraw(ctx context.Context, a *cniplugin.Args, ref store.Ref, h held) error {
	if h == none {
		return nil
	}
	dp, err := p.OpenExisting(ctx, a)
	switch {
	case err == nil:
		err = dp.Disable(ctx, ref.Owner(), loader.FeatureAdmit)
		dp.Close()
		if unlessGone(err) != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "withdraw the admission of %s", ref.IfName)
		}
	case errors.Is(err, loader.ErrNotLoaded):
	case errors.Is(err, loader.ErrUnavailable) && h == unknown:
		// No record of ours, on a node that cannot hold anything of ours.
	default:
		return chained.OpenError(err, cnierr.CodeNoDatapath)
	}
	if err := p.Records.Remove(ref, Name); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "remove the attachment record")
	}
	return nil
}

// unlessGone takes a datapath whose maps somebody has removed for one that was
// never loaded: it holds nothing of ours.
func unlessGone(err error) error {
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	return err
}
