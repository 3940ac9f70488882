// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// portKey is one published port as a record holds it, with where it leads and
// whose work it is.
type portKey struct {
	HostIP  netip.Addr `json:"hostIP"`
	Proto   uint8      `json:"proto"`
	Port    uint16     `json:"port"`
	PodIP   netip.Addr `json:"podIP,omitzero"`
	PodPort uint16     `json:"podPort,omitempty"`
	Backend string     `json:"backend"`
}

// detach is DEL for an attachment that only its record names.
func (p *plugin) detach(ctx context.Context, call *cniskel.Args, rec *attachments.Record) error {
	return p.withdraw(ctx, call, rec.Ref, p.held(rec.Ref))
}

// held is what is known about an attachment's ports before the kernel is asked.
type held struct {
	unknown bool      // no record that can be read: every back end has to look
	none    bool      // the record has no section of this plugin
	keys    []portKey // what the section says
}

// of returns the keys that a back end holds.
func (h held) of(b Backend) []portKey {
	var out []portKey
	for _, k := range h.keys {
		if k.Backend == b.Name() {
			out = append(out, k)
		}
	}
	return out
}

// del needs nothing but the attachment's name: neither runtimeConfig, nor
// prevResult, nor the namespace, nor a configuration that ADD would accept.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return err
	}
	ref := a.Ref(conf.Name)
	h := p.held(ref)
	if h.none && mapped(a.StdinData) {
		h = held{unknown: true}
	}
	return p.withdraw(ctx, a, ref, h)
}

// mapped reports that the call has mappings. An ADD of ours would have recorded them: where the record is only that of other
// plugins of the chain, the ports are the reference's work.
func mapped(stdin []byte) bool {
	var conf Conf
	_ = cniconf.Load(stdin, &conf) // what does not decode maps nothing
	return slices.ContainsFunc(conf.RuntimeConfig.PortMappings, func(m PortMapping) bool { return m.HostPort > 0 })
}

// held reads the record.
func (p *plugin) held(ref attachments.Ref) held {
	rec, err := p.Records.Load(ref)
	if err != nil || rec.Corrupt {
		return held{unknown: true}
	}
	var s section
	switch ok, err := rec.Section(Name, &s); {
	case err != nil:
		return held{unknown: true}
	case !ok:
		return held{none: true}
	}
	return held{keys: s.Ports}
}

// withdraw takes out the ports, and the record once nothing of them is left.
// Missing is success.
func (p *plugin) withdraw(ctx context.Context, a *cniskel.Args, ref attachments.Ref, h held) error {
	if h.none {
		return nil
	}
	var errs []error
	for _, b := range p.named(a, h) {
		errs = append(errs, b.Remove(ctx, a, ref, h.of(b)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := p.Records.Remove(ref, Name); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "remove the attachment record")
	}
	return nil
}
