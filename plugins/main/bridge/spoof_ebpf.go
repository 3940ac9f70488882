// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

func (p *plugin) spoofOpener() Opener {
	o := p.Opener
	o.Prefix = "macspoofchk: "
	return o
}

// openSpoof opens what checks source MACs: the datapath where the node's backend is eBPF. Nil means nftables. The
// caller must Close the other.
func (p *plugin) openSpoof(ctx context.Context, a *cniskel.Args) (loader.Interface, error) {
	wanted, err := p.masq().NodeBackend(a)
	if err != nil {
		return nil, err
	}
	if backend.TriesEBPF(wanted) {
		dp, err := p.spoofOpener().Load(ctx, a)
		if err == nil || wanted == backend.EBPF || !errors.Is(err, loader.ErrUnavailable) {
			return dp, err
		}
		a.Log.Info("eBPF cannot do this: using nftables", log.NamedError(log.KeyReason, err))
		return nil, cnierr.Wrap(cnierr.CodeNoDatapath, withReason(p.NFT.Available(), err), "macspoofchk needs eBPF or the nft program")
	}
	return nil, cnierr.Wrap(cnierr.CodeNoDatapath, p.NFT.Available(), "macspoofchk needs the nft program")
}

// withReason adds to an error why the other way is not open.
func withReason(err, why error) error {
	if err == nil {
		return nil
	}
	return errors.Join(why, err)
}

// macChecked is the pod's device as the datapath's check needs it.
func macChecked(ref attachments.ID, hostEnd, podEnd rtnl.Link) loader.Endpoint {
	return loader.Endpoint{Ref: ref, HostIfindex: hostEnd.Index, HostIfName: hostEnd.Name, Netkit: podEnd.Kind == rtnl.KindNetkit, MAC: podEnd.MAC}
}

// spoofCheckEBPF turns the check on. It is in force before the pod has an address.
func (t *attach) spoofCheckEBPF(ctx context.Context) error {
	t.rb.Push("source MAC check", func(ctx context.Context) error {
		return t.spoof.Disable(ctx, t.ref.Owner(), loader.FeatureMACCheck, loader.Held{HostIfindex: t.hostEnd.Index})
	})
	err := t.spoof.Enable(ctx, macChecked(t.ref, t.hostEnd, t.podEnd), loader.FeatureMACCheck)
	return cnierr.Wrap(cnierr.CodeKernel, err, "install the source MAC check")
}

// checkSpoofEBPF compares the check with the pod's device.
func (c *inspection) checkSpoofEBPF(ctx context.Context) error {
	return c.p.spoofOpener().Check(ctx, c.args, "source MACs are not checked", func(dp loader.Interface) error {
		err := dp.CheckEndpoint(ctx, macChecked(c.ref, c.hostEnd, c.podEnd), loader.FeatureMACCheck)
		return cnierr.Wrap(cnierr.CodeCheck, err, "the source MAC check differs")
	})
}

// removeSpoofEBPF turns the check off. index is that of the host veth, 0 for not known. Where the datapath is not loaded or cannot run
// there is none.
func (p *plugin) removeSpoofEBPF(ctx context.Context, a *cniskel.Args, ref attachments.ID, index int) error {
	err := p.spoofOpener().Existing(ctx, a, func(dp loader.Interface) error {
		err := backend.IgnoreNotLoaded(dp.Disable(ctx, ref.Owner(), loader.FeatureMACCheck, loader.Held{HostIfindex: index}))
		return cnierr.Wrap(cnierr.CodeKernel, err, "remove the source MAC check")
	})
	if errors.Is(err, loader.ErrUnavailable) {
		a.Log.Warn("the datapath cannot be looked at", log.Error(err))
		return nil
	}
	return err
}

// spoofStatus says with code 50 why an ADD could not check source MACs.
func (p *plugin) spoofStatus(ctx context.Context, a *cniskel.Args) error {
	dp, err := p.openSpoof(ctx, a)
	if err == nil && dp != nil {
		err = dp.Close()
	}
	return cnierr.Unavailable(err)
}
