// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// del needs nothing but the attachment's name: neither runtimeConfig, nor
// prevResult, nor the namespace, nor a configuration that ADD would accept. It
// also removes what upstream's plugin has left of an attachment of its own.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return err
	}
	return p.withdraw(ctx, a, a.Ref(conf.Name))
}

// withdraw is DEL for an attachment that is known by its name alone.
func (p *plugin) withdraw(ctx context.Context, a *cniskel.Args, ref attachments.ID) error {
	var lost error
	if _, err := p.Records.Load(ref); errors.Is(err, attachments.ErrNotExist) { // what the datapath holds is found by owner
		lost = cnierr.Wrap(cnierr.CodeKernel, p.disable(ctx, a, ref, &section{}), "remove the limits of %s", ref.IfName)
	}
	return errors.Join(lost, p.forget(ctx, a, ref), p.delNamedIFBs(ref))
}

// forget takes out what the record says, then the record. Missing is success.
func (p *plugin) forget(ctx context.Context, a *cniskel.Args, ref attachments.ID) error {
	rec, err := p.Records.Load(ref)
	if errors.Is(err, attachments.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "read the attachment record")
	}
	var s section
	ok, err := rec.Section(Name, &s)
	if !ok && !rec.Corrupt {
		return nil
	}
	if err != nil || rec.Corrupt { // what it holds is found by name and owner
		s = section{}
	}
	if rec.Plugins[Name].State != attachments.StateDone && s.IFB != "" {
		// The ADD was killed, perhaps before it made the device: another interface of the container may have the name.
		claimed, err := p.claimedIFBs(ref)
		if err != nil {
			return cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
		}
		if claimed[s.IFB] {
			s.IFB = ""
		}
	}
	// The qdisc that redirection and datapath share goes with its maker's filters, after those of the other.
	steps := []func() error{func() error { return delOnNode(&s) }, func() error { return p.disable(ctx, a, ref, &s) }}
	if s.Clsact {
		slices.Reverse(steps)
	}
	errs := []error{steps[0](), steps[1](), delInPod(&s, rec.NetNS, ref.IfName)}
	if err := errors.Join(errs...); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "remove the limits of %s", ref.IfName)
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Remove(ref, Name), "remove the attachment record")
}

// delOnNode removes what is on this side: the qdisc of the host veth, and the
// redirection with its device.
func delOnNode(s *section) error {
	if s.inside() {
		return nil
	}
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	at := side{h: h}
	host, err := h.LinkByIndex(s.HostIfindex)
	switch {
	case err == nil && host.Paired() && host.Name == s.HostIfName: // else the index has a new owner
		at.index = host.Index
	case err != nil && !errors.Is(err, rtnl.ErrNotFound):
		return err
	}
	return at.clear(s, s.Ingress)
}

// delInPod removes what is inside the pod's namespace, if that is there still.
func delInPod(s *section, path, ifname string) error {
	if !s.inPod() {
		return nil
	}
	pod, err := podns.Reopen(s.NetNS, path)
	if pod == nil {
		return err
	}
	defer pod.Close()
	at := side{h: pod.Handle}
	switch link, err := pod.LinkByName(ifname); {
	case err == nil:
		at.index = link.Index
	case !errors.Is(err, rtnl.ErrNotFound):
		return err
	}
	return at.clear(s, s.Egress)
}

// clear removes what was made at a side, which may have gone: the qdisc of a
// limit on what leaves it, and the redirection of what arrives with its device.
func (s side) clear(made *section, leaving *Limit) error {
	var errs []error
	if s.index != 0 && leaving != nil {
		errs = append(errs, delRoot(s, rtnl.QdiscTBF, rtnl.QdiscHTB, rtnl.QdiscFQ))
	}
	if s.index != 0 && made.IFB != "" {
		errs = append(errs, delRedirect(s, made.Clsact))
	}
	if made.IFB != "" {
		errs = append(errs, delIFB(s, made.IFB))
	}
	return errors.Join(errs...)
}

// inPod says whether something was made inside the pod's namespace.
func (s *section) inPod() bool {
	return s.Backend != "" && (s.inside() || s.Backend == BackendEDT && s.Egress != nil)
}

// disable removes departure times, and lets the pod's flows take the short way again.
func (p *plugin) disable(ctx context.Context, a *cniskel.Args, ref attachments.ID, s *section) error {
	err := p.Existing(ctx, a, func(dp loader.Interface) error {
		// The programs of limits first: what they hang on may go with the feature.
		return errors.Join(
			dp.RemoveRateLimit(ctx, ref.Owner(), s.networks()),
			backend.IgnoreNotLoaded(dp.Disable(ctx, ref.Owner(), loader.FeatureQueueRx|loader.FeatureQueueTx, s.held())))
	})
	if errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	return err
}

// delNamedIFBs removes the devices on the node that bear the attachment's names,
// unless another attachment has one: upstream's name is the same for all
// interfaces of a container.
func (p *plugin) delNamedIFBs(ref attachments.ID) error {
	h, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open netlink")
	}
	defer h.Close()
	var claimed map[string]bool
	var errs []error
	for _, name := range []string{referenceIFB(ref), ownIFB(ref)} {
		if _, err := h.LinkByName(name); errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		if claimed == nil {
			if claimed, err = p.claimedIFBs(ref); err != nil {
				return cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
			}
		}
		if !claimed[name] {
			errs = append(errs, delIFB(side{h: h}, name))
		}
	}
	return cnierr.Wrap(cnierr.CodeKernel, errors.Join(errs...), "remove the intermediate device of %s", ref.IfName)
}
