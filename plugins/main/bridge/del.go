// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"errors"

	"go.uber.org/zap"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/nl"
	"github.com/sluice-cni/sluice/pkg/store"
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

func (p *plugin) loadSection(ref store.Ref) remembered {
	var r remembered
	rec, err := p.Records.Load(ref)
	if err != nil || rec.Corrupt {
		return r
	}
	found, err := rec.Section(Name, &r.section)
	r.found = found && err == nil
	return r
}

// del detaches the pod. It needs no more than the attachment's name: what ADD
// made is in the record, and what has no record is found by derived names.
func (p *plugin) del(ctx context.Context, a *cniplugin.Args) error {
	c, err := parseDel(a.StdinData)
	if err != nil {
		return err
	}
	host, err := nl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	defer host.Close()
	ref := store.Ref{Network: c.Name, ContainerID: a.ContainerID, IfName: a.IfName}
	return p.detach(ctx, a, host, c, ref)
}

// detach removes everything of one attachment and then its record. It goes on
// after an error; the record stays while something is left.
func (p *plugin) detach(ctx context.Context, a *cniplugin.Args, host *nl.Handle, c delConf, ref store.Ref) error {
	old := p.loadSection(ref)
	if !old.found {
		old.Bridge, old.SpoofCheck = c.Bridge, c.MACSpoofChk
	}
	err := errors.Join(
		p.removeDevices(ctx, host, a, ref, old),
		p.release(ctx, a, c, old),
	)
	if err != nil {
		return err
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Remove(ref, Name), "remove the attachment record")
}

// removeDevices removes what the ADD made on the host: the pair, the source
// MAC check and the datapath's endpoint.
func (p *plugin) removeDevices(ctx context.Context, host *nl.Handle, a *cniplugin.Args, ref store.Ref, old remembered) error {
	var errs []error
	if old.found {
		errs = append(errs, removeRecorded(host, old.section))
	} else {
		errs = append(errs, removeDerived(host, ref), p.removeNamed(host, a, old.Bridge))
	}
	if !old.found || old.Masquerade {
		errs = append(errs, p.unmasquerade(ctx, a, ref))
	}
	if old.SpoofCheck {
		errs = append(errs, p.removeSpoofCheck(ctx, a, ref))
	}
	return errors.Join(errs...)
}

// removeRecorded deletes the host end, and with it the pair, if the device is
// the recorded one. The kernel may have given its index, and the operator its
// name, to another since.
func removeRecorded(host *nl.Handle, s section) error {
	l, err := host.LinkByName(s.HostIfName)
	if errors.Is(err, nl.ErrNotFound) && s.HostIndex > 0 {
		l, err = host.LinkByIndex(s.HostIndex) // renamed
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "look up the host end")
	}
	if l.Kind != "veth" || l.MAC.String() != s.HostMAC {
		return nil
	}
	return cnierr.Wrap(cnierr.CodeKernel, gone(host.DelLink(l.Index)), "delete %s", l.Name)
}

// removeDerived deletes the host end that an ADD whose record is lost made.
func removeDerived(host *nl.Handle, ref store.Ref) error {
	l, err := host.LinkByName(hostIfName(ref, 0))
	if err != nil || l.Kind != "veth" {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "look up the host end")
	}
	return cnierr.Wrap(cnierr.CodeKernel, gone(host.DelLink(l.Index)), "delete %s", l.Name)
}

// removeNamed deletes the pair of a pod that the reference plugin attached: the
// interface CNI_IFNAME, if it is a veth whose other end is on this network's
// bridge, or on none, and that no attachment of ours claims. A namespace that
// is gone took its end with it.
func (p *plugin) removeNamed(host *nl.Handle, a *cniplugin.Args, bridge string) error {
	if a.Netns == "" || a.IfName == "" {
		return nil
	}
	ns, err := netns.Open(a.Netns)
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return nil
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "CNI_NETNS %q cannot be used", a.Netns)
	}
	defer ns.Close()
	pod, err := nl.NewIn(ns)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	defer pod.Close()
	l, err := pod.LinkByName(a.IfName)
	if err != nil || l.Kind != "veth" {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "look up %s in the pod", a.IfName)
	}
	end, err := host.LinkByIndex(l.PeerIndex)
	if err != nil || end.Kind != "veth" || end.PeerIndex != l.Index || !onBridge(host, end, bridge) || p.claimed(end) {
		return nil // not a device that this plugin or the reference's would have made
	}
	return cnierr.Wrap(cnierr.CodeKernel, gone(host.DelLink(end.Index)), "delete %s", end.Name)
}

func onBridge(host *nl.Handle, end nl.Link, bridge string) bool {
	if end.MasterIndex == 0 {
		return true
	}
	br, err := host.LinkByIndex(end.MasterIndex)
	return err == nil && br.Name == bridge
}

// claimed reports that some attachment's record names the device. It reads all
// records; only attachments without one come here.
func (p *plugin) claimed(l nl.Link) bool {
	records, err := p.Records.List("")
	if err != nil {
		return true // cannot be ruled out
	}
	for _, rec := range records {
		var s section
		if ok, err := rec.Section(Name, &s); ok && err == nil && s.HostMAC == l.MAC.String() {
			return true
		}
	}
	return false
}

// unmasquerade takes the pod out of the datapath. Where nothing is loaded, or
// somebody has removed the maps, there is nothing to take out; a DEL that failed
// for it would block the plugins before it in the chain.
func (p *plugin) unmasquerade(ctx context.Context, a *cniplugin.Args, ref store.Ref) error {
	dp, err := p.OpenExisting(ctx, a)
	switch {
	case errors.Is(err, loader.ErrNotLoaded):
		return nil
	case errors.Is(err, loader.ErrUnavailable):
		a.Log.Warn("the datapath cannot be looked at", zap.Error(err))
		return nil
	case err != nil:
		return openError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	if err := dp.Disable(ctx, ref.Owner(), loader.FeatureMasquerade); !errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.Wrap(cnierr.CodeKernel, err, "stop masquerading the pod")
	}
	return nil
}

// release calls the IPAM plugin's DEL, always. When the configuration has no
// ipam section the recorded one takes its place.
func (p *plugin) release(ctx context.Context, a *cniplugin.Args, c delConf, old remembered) error {
	raw, call := c.IPAM, *a
	if len(raw) == 0 && len(old.IPAM) > 0 {
		raw = old.IPAM
		stdin, err := withIPAM(a.StdinData, raw)
		if err != nil {
			return err
		}
		call.StdinData = stdin
	}
	kind, err := ipamType(raw)
	if err != nil || kind == "" {
		a.Log.Debug("no IPAM plugin to call", zap.NamedError(log.KeyReason, err))
		return nil // an ADD with such a section has never succeeded
	}
	return p.IPAM.Del(ctx, &call, kind)
}

// withIPAM returns the configuration with its ipam section replaced.
func withIPAM(stdin []byte, ipam json.RawMessage) ([]byte, error) {
	keys := make(map[string]json.RawMessage)
	if err := cniconf.Load(stdin, &keys); err != nil {
		return nil, err
	}
	keys["ipam"] = ipam
	out, err := json.Marshal(keys)
	return out, cnierr.Wrap(cnierr.CodeDecode, err, "complete the configuration for the IPAM plugin")
}
