// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// tables is the backend that writes netfilter rules.
type tables struct {
	netfilter.Tables
	Deps
}

var _ Backend = tables{}

// Prepare finds the device that the node's own processes reach the pod by. The
// tables have been found usable when they were chosen.
func (b tables) Prepare(ctx context.Context, a *cniskel.Args, r request) (Job, error) {
	ports := r.netfilter()
	ports.Before, ports.Spare = mappings(b.section(r.ref).Ports), b.spare(r.ref)
	return &tablesJob{tables: b, args: a, ports: ports, localnet: b.localnet(ctx, a, r)}, nil
}

// localnet names the device whose route_localnet this attachment has to turn on.
// It is empty where route_localnet is on and no attachment's record says so.
func (b tables) localnet(ctx context.Context, a *cniskel.Args, r request) string {
	if !r.snat || !slices.ContainsFunc(r.ports, func(p port) bool { return p.PodIP.Is4() }) {
		return ""
	}
	ep, err := b.Resolve(ctx, a.Netns, a.IfName)
	if err != nil {
		a.Log.Debug("the pod has no host end: not reached from 127.0.0.1", log.Error(err))
		return ""
	}
	name := ep.HostIfName
	if h, err := rtnl.New(); err == nil {
		if l, err := h.LinkByIndex(ep.RouteIfindex); err == nil {
			name = l.Name
		}
		h.Close()
	}
	if on, err := sysctl.Get("net/ipv4/conf/" + name + "/route_localnet"); err != nil || on == "1" && !b.usesLocalnet(name, attachments.ID{}) {
		return ""
	}
	return name
}

// usesLocalnet reports whether an attachment other than this one relies on the
// device. Unsure is yes.
func (b tables) usesLocalnet(ifname string, but attachments.ID) bool {
	records, err := b.Records.List("")
	if err != nil {
		return true
	}
	return slices.ContainsFunc(records, func(r *attachments.Record) bool {
		var s section
		ok, err := r.Section(Name, &s)
		return r.ID != but && ok && err == nil && s.Localnet == ifname
	})
}

// netfilter is what tables know of the port.
func (p port) netfilter() netfilter.Mapping {
	return netfilter.Mapping{Key: p.Key, PodIP: p.PodIP, PodPort: p.PodPort}
}

// netfilter is the request in the words of pkg/netfilter.
func (r request) netfilter() netfilter.Ports {
	p := netfilter.Ports{
		Ref: r.ref, Pod: r.addrs, SNAT: r.snat, MasqAll: r.conf.MasqAll, MarkBit: netfilter.DefaultMarkBit,
		ConditionsV4: r.conf.ConditionsV4, ConditionsV6: r.conf.ConditionsV6,
	}
	if r.conf.MarkMasqBit != nil {
		p.MarkBit = *r.conf.MarkMasqBit
	}
	if r.conf.ExternalSetMarkChain != nil {
		p.MarkChain = *r.conf.ExternalSetMarkChain
	}
	for _, hp := range r.ports {
		p.Mappings = append(p.Mappings, hp.netfilter())
	}
	return p
}

type tablesJob struct {
	tables
	args     *cniskel.Args
	ports    netfilter.Ports
	localnet string
}

func (*tablesJob) Close() error { return nil }

// Record adds what DEL has to know.
func (j *tablesJob) Record(s *section) {
	if j.localnet != "" {
		s.Localnet = j.localnet
	}
}

// Apply writes the rules, then ends connections that go elsewhere: those of UDP
// and SCTP would keep their old target for as long as the client sends.
func (j *tablesJob) Apply(ctx context.Context, rb *rollback.Stack) error {
	rb.Push("host ports", func(ctx context.Context) error {
		return j.DelPorts(ctx, netfilter.Held{Ref: j.ports.Ref, Mappings: j.ports.Mappings})
	})
	if err := j.AddPorts(ctx, j.ports); err != nil {
		return netfilter.CNIError(err, cnierr.CodeNoDatapath, "publish host ports")
	}
	rb.Push("claim of host ports", func(ctx context.Context) error { return j.release(ctx, j.args, j.ports.Ref, j.keys()) })
	if err := j.claim(ctx); err != nil {
		return err
	}
	kept := netfilter.SpareMappings(j.ports.Spare, "") // by the container's other attachments
	dropFlows(j.args, j.ports.Mappings, func(m netfilter.Mapping, f rtnl.Flow) bool {
		return m.Proto != unix.IPPROTO_TCP && f.ReplySrc != netip.AddrPortFrom(m.PodIP, m.PodPort) &&
			!slices.ContainsFunc(kept, func(o netfilter.Mapping) bool { return f.ReplySrc == netip.AddrPortFrom(o.PodIP, o.PodPort) })
	})
	if j.localnet == "" {
		return nil
	}
	rb.Push("route_localnet", func(ctx context.Context) error {
		return j.disableLocalnet(ctx, j.args, j.localnet, j.ports.Ref)
	})
	return netfilter.CNIError(j.EnableLocalnet(ctx, j.localnet), cnierr.CodeNoDatapath, "let 127.0.0.1 reach the pod")
}

// keys are the hostPorts that the job publishes.
func (j *tablesJob) keys() []hostport.Key { return mappingKeys(j.ports.Mappings) }

// mappingKeys returns the keys of mappings, never nil.
func mappingKeys(mappings []netfilter.Mapping) []hostport.Key {
	out := make([]hostport.Key, 0, len(mappings))
	for _, m := range mappings {
		out = append(out, m.Key)
	}
	return out
}

// claim takes the ports over from pods that eBPF serves: its programs see packets before these rules do. A full map has no entry of
// another pod for the port.
func (j *tablesJob) claim(ctx context.Context) error {
	now := j.keys()
	err := j.Existing(ctx, j.args, func(dp loader.Interface) error {
		if err := dp.ClaimHostPorts(ctx, j.ports.Ref.Owner(), now, siblings(j.Records, j.ports.Ref)); err != nil {
			return err
		}
		before := slices.DeleteFunc(mappingKeys(j.ports.Before), func(k hostport.Key) bool { return slices.Contains(now, k) })
		return dp.ReleaseHostPorts(ctx, j.ports.Ref.Owner(), before)
	})
	switch {
	case errors.Is(err, loader.ErrFull):
		j.args.Log.Warn("a later pod may take a hostPort from this one by eBPF", log.Error(err))
		return nil
	case errors.Is(err, loader.ErrUnavailable):
		return nil // no programs run here
	}
	return cnierr.Wrap(cnierr.CodeKernel, backend.IgnoreNotLoaded(err), "take host ports over from eBPF")
}

// unclaimed returns the keys of ports, nil for none, that other tables do not have by a repeated ADD of the attachment.
func (b tables) unclaimed(ref attachments.ID, ports []recordedPort) []hostport.Key {
	now := b.section(ref).Ports
	return slices.DeleteFunc(recordKeys(ports), func(k hostport.Key) bool {
		return slices.ContainsFunc(now, func(p recordedPort) bool {
			return p.Backend != b.Name() && p.Backend != backend.EBPF && k == p.Key
		})
	})
}

// release gives the ports back to pods that eBPF serves; with nil, all that the attachment has claimed.
func (b tables) release(ctx context.Context, a *cniskel.Args, ref attachments.ID, keys []hostport.Key) error {
	err := b.Existing(ctx, a, func(dp loader.Interface) error { return dp.ReleaseHostPorts(ctx, ref.Owner(), keys) })
	if errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	return cnierr.Wrap(cnierr.CodeKernel, backend.IgnoreNotLoaded(err), "give host ports back to eBPF")
}

// dropFlows ends the connections to published ports that match accepts. A kernel
// that cannot tell them leaves them as they are.
func dropFlows(a *cniskel.Args, mappings []netfilter.Mapping, match func(netfilter.Mapping, rtnl.Flow) bool) {
	for _, family := range []int{rtnl.FamilyV4, rtnl.FamilyV6} {
		var of []netfilter.Mapping
		for _, m := range mappings {
			if m.PodIP.Is4() == (family == rtnl.FamilyV4) {
				of = append(of, m)
			}
		}
		if len(of) == 0 {
			continue
		}
		n, err := rtnl.DropFlows(family, func(f rtnl.Flow) bool {
			return slices.ContainsFunc(of, func(m netfilter.Mapping) bool {
				return f.Proto == m.Proto && f.Dst.Port() == m.Port && (m.HostIP.IsUnspecified() || f.Dst.Addr() == m.HostIP) && match(m, f)
			})
		})
		if err != nil {
			a.Log.Warn("connections to published ports may go the old way", log.Error(err))
		} else if n > 0 {
			a.Log.Debug("ended connections to published ports", log.Int("connections", n))
		}
	}
}

// Remove takes the rules out, and ends the connections that they made.
func (b tables) Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, ports []recordedPort) error {
	h := netfilter.Held{Ref: ref, Mappings: mappings(ports), Spare: b.spare(ref)}
	if err := b.DelPorts(ctx, h); err != nil {
		if ports == nil && backend.Unusable(a, b, err) == nil {
			return nil
		}
		return netfilter.CNIError(err, cnierr.CodeNoDatapath, "withdraw host ports")
	}
	if err := b.release(ctx, a, ref, b.unclaimed(ref, ports)); err != nil {
		return err
	}
	dropFlows(a, h.Mappings, func(m netfilter.Mapping, f rtnl.Flow) bool {
		return f.ReplySrc == netip.AddrPortFrom(m.PodIP, m.PodPort)
	})
	if ports == nil {
		return b.disableUnused(ctx, a, ref)
	}
	s := b.section(ref)
	relies := slices.ContainsFunc(s.Ports, func(k recordedPort) bool { return k.Backend == b.Name() })
	if s.Localnet == "" || !relies { // after a repeated ADD another backend may rely on it
		return nil
	}
	err := b.disableLocalnet(ctx, a, s.Localnet, ref)
	return netfilter.CNIError(err, cnierr.CodeNoDatapath, "take route_localnet back")
}

// mappings are a record's ports in the words of pkg/netfilter, nil for none.
func mappings(ports []recordedPort) (out []netfilter.Mapping) {
	for _, k := range ports {
		out = append(out, k.Mapping)
	}
	return out
}

// disableLocalnet takes route_localnet back from a device unless an attachment
// other than this one relies on it. An earlier one may have had other tables,
// which guard the device still.
func (b tables) disableLocalnet(ctx context.Context, a *cniskel.Args, ifname string, but attachments.ID) error {
	used := func() bool { return b.usesLocalnet(ifname, but) }
	errs := []error{b.DisableLocalnet(ctx, ifname, used, b.published)}
	if used() {
		return errs[0]
	}
	node, _ := b.Netfilter(a) // it can be used with an error too
	for _, t := range node.All() {
		if t.Name() == b.Name() {
			continue
		}
		if guarded, _ := t.Guarded(ctx); slices.Contains(guarded, ifname) { // what cannot be read is left to GC
			errs = append(errs, t.DisableLocalnet(ctx, ifname, used, b.published))
		}
	}
	return errors.Join(errs...)
}

// published reports whether a record has a port that leads to the address.
func (b tables) published(a netip.Addr) bool {
	records, _ := b.Records.List("") // what cannot be listed counts as a third party's
	return slices.ContainsFunc(records, func(r *attachments.Record) bool {
		var s section
		ok, err := r.Section(Name, &s)
		return ok && err == nil && slices.ContainsFunc(s.Ports, func(k recordedPort) bool { return k.PodIP == a })
	})
}

// disableUnused takes route_localnet back from the devices that no attachment
// other than this one relies on, when no record says which it was.
func (b tables) disableUnused(ctx context.Context, a *cniskel.Args, ref attachments.ID) error {
	devices, err := b.Guarded(ctx)
	errs := []error{err}
	for _, name := range devices {
		if !b.usesLocalnet(name, ref) {
			errs = append(errs, b.disableLocalnet(ctx, a, name, ref))
		}
	}
	if err := errors.Join(errs...); !errors.Is(err, netfilter.ErrUnusable) {
		return netfilter.CNIError(err, cnierr.CodeNoDatapath, "take route_localnet back")
	}
	return nil
}

func (b tables) section(ref attachments.ID) (s section) {
	if rec, err := b.Records.Load(ref); err == nil && !rec.Corrupt {
		_, _ = rec.Section(Name, &s) // what cannot be read is empty
	}
	return s
}

// spare lists what the container's other attachments have: rules are named after
// the container.
func (b tables) spare(ref attachments.ID) []netfilter.Held {
	var out []netfilter.Held
	records, _ := b.Records.List("")
	for _, r := range records {
		var s section
		if ok, err := r.Section(Name, &s); !ok || err != nil || r.ContainerID != ref.ContainerID || r.ID == ref {
			continue
		}
		out = append(out, netfilter.Held{Ref: r.ID, Mappings: mappings(s.Ports)})
	}
	return out
}

// Check compares the rules, the shared ones too.
func (b tables) Check(ctx context.Context, _ *cniskel.Args, r request) error {
	ports := r.netfilter()
	ports.ThirdParty, ports.Spare = len(b.section(r.ref).Ports) == 0, b.spare(r.ref)
	return netfilter.CNIError(b.CheckPorts(ctx, ports), cnierr.CodeNoDatapath, "host ports differ from the configuration")
}

// Sweep removes the rules of containers of the network that the runtime does
// not know and no record names.
func (b tables) Sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error {
	keep := make(map[string]bool)
	for ref := range valid {
		keep[ref.ContainerID] = true
	}
	records, err := b.Records.List(network)
	if err != nil {
		return nil //nolint:nilerr // without records nothing tells what is garbage; gc.Collector reports the error
	}
	for _, r := range records {
		keep[r.ContainerID] = true
	}
	err = b.SweepPorts(ctx, network, func(id string) bool { return keep[id] })
	if errors.Is(err, netfilter.ErrUnusable) {
		return nil
	}
	if err != nil {
		return netfilter.CNIError(err, cnierr.CodeNoDatapath, "sweep host ports")
	}
	return b.disableUnused(ctx, a, attachments.ID{})
}

// Status has nothing to add: tables that were chosen can be used.
func (tables) Status(context.Context, *cniskel.Args) error { return nil }
