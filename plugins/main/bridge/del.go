// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

// delConf is the little that DEL and GC read of a configuration. The rest may
// be anything, also what ADD would refuse.
type delConf struct {
	cniconf.Common
	Bridge      string          `json:"bridge"`
	MACSpoofChk bool            `json:"macspoofchk"`
	IPAM        json.RawMessage `json:"ipam"`
}

func parseDel(stdin []byte) (delConf, error) {
	var c delConf
	if err := cniconf.Load(stdin, &c); err != nil && c.Name == "" {
		return c, err // with a name, an odd value elsewhere must not keep us from cleaning
	}
	if c.Bridge == "" {
		c.Bridge = defaultBridge
	}
	return c, nil
}

// remembered is the record's section, if there is one that can be read.
type remembered struct {
	section
	found bool
}

func (p *plugin) loadSection(ref attachments.ID) (r remembered) {
	r.section, r.found, _ = attachments.ReadSection[section](p.Records, ref, Name)
	return r
}

func (p *plugin) record(ref attachments.ID) cniops.Record {
	return cniops.Record{Dir: p.Records, ID: ref, Section: Name}
}

// del detaches the pod. It needs no more than the attachment's name: what ADD
// made is in the record, and what has no record is found by derived names.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, err := parseDel(a.StdinData)
	if err != nil {
		return err
	}
	host, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	defer host.Close()
	return p.detach(ctx, a, host, c, a.Ref(c.Name))
}

// detach removes everything of one attachment and then its record. It goes on
// after an error; the record stays while something is left.
func (p *plugin) detach(ctx context.Context, a *cniskel.Args, host *rtnl.Handle, c delConf, ref attachments.ID) error {
	old := p.loadSection(ref)
	if !old.found {
		old.Bridge, old.SpoofCheck = c.Bridge, c.MACSpoofChk
	}
	return p.record(ref).Detach(ctx, p.IPAM, a, c.IPAM, old.IPAM, func() error { return p.removeDevices(ctx, host, a, ref, old) })
}

// removeDevices removes what the ADD made on the host: the pair, the source
// MAC check and the datapath's endpoint.
func (p *plugin) removeDevices(ctx context.Context, host *rtnl.Handle, a *cniskel.Args, ref attachments.ID, old remembered) error {
	// The pair of a pod that upstream's plugin attached has its other end on this network's bridge, or on none.
	ours := func(end rtnl.Link) bool { return onBridge(host, end, old.Bridge) }
	errs := []error{old.RemovePair(host, a, ref, old.found, p.Records.List, ours)}
	if !old.found || old.Masquerade != "" {
		errs = append(errs, p.masq().Stop(ctx, a, ref, old.Masquerade, old.Addrs))
	}
	if old.SpoofCheck && old.SpoofBackend != backend.EBPF { // also of a build that had no other way
		errs = append(errs, p.removeSpoofCheck(ctx, a, ref))
	}
	if !old.found || old.SpoofBackend == backend.EBPF {
		errs = append(errs, p.removeSpoofEBPF(ctx, a, ref, old.HostIndex))
	}
	return errors.Join(errs...)
}

func onBridge(host *rtnl.Handle, end rtnl.Link, bridge string) bool {
	if end.MasterIndex == 0 {
		return true
	}
	br, err := host.LinkByName(bridge) // perhaps an alternative name
	return err == nil && br.Index == end.MasterIndex
}
