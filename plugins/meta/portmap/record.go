// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// section is what an attachment record holds of this plugin: the ports that DEL
// has to take out. Its JSON is read by later versions.
type section struct {
	Ports []recordedPort `json:"ports"`
	// Localnet is the device whose route_localnet this attachment relies on.
	Localnet string `json:"localnet,omitempty"`
	// Addrs are the pod's, for eBPF. Records of builds before it have none.
	Addrs []netip.Addr `json:"addrs,omitempty"`
}

// recordedPort is one published port as a record holds it, with its backend.
type recordedPort struct {
	netfilter.Mapping
	Backend string `json:"backend"`
}

// section is what the record will hold of the assignments.
func (parts assignments) section() section {
	var s section
	for _, part := range parts {
		for _, hp := range part.request.ports {
			s.Ports = append(s.Ports, recordedPort{hp.netfilter(), part.backend.Name()})
		}
		part.job.Record(&s)
	}
	return s
}

// recordedPorts is what the record says of an attachment's ports.
type recordedPorts struct {
	unknown bool           // no record that can be read: every backend has to look
	missing bool           // with unknown: there is no record at all
	none    bool           // the record has no section of this plugin
	keys    []recordedPort // what the section says

	addrs []netip.Addr // of the endpoint, as the section says; nil: not known
}

// recordedPorts reads the record.
func (p *plugin) recordedPorts(ref attachments.ID) recordedPorts {
	rec, err := p.Records.Load(ref)
	if err != nil || rec.Corrupt {
		return recordedPorts{unknown: true, missing: errors.Is(err, attachments.ErrNotExist)}
	}
	var s section
	switch ok, err := rec.Section(Name, &s); {
	case err != nil:
		return recordedPorts{unknown: true}
	case !ok:
		return recordedPorts{none: true}
	}
	return recordedPorts{keys: s.Ports, addrs: s.Addrs}
}

// siblings returns the owners of the container's other attachments with ports. Multus gives the ports of a pod to each network that has the
// capability, and podman to each that a container joins. With upstream's rules, which are appended, the first attachment has a port until
// it goes. Records that cannot be read are left out: the port then goes to the last ADD.
func siblings(records *attachments.Dir, ref attachments.ID) func() []uint64 {
	return func() (owners []uint64) {
		of, _ := records.ListOf(ref.ContainerID)
		for _, r := range of {
			if _, ok := r.Plugins[Name]; ok && r.ID != ref {
				owners = append(owners, r.Owner())
			}
		}
		return owners
	}
}

// with returns the section with the ports that eBPF has of an earlier ADD. SetHostPorts takes out only what it is told of. The tables
// find what they have by their rules.
func (s section) with(before recordedPorts) section {
	if len(before.keys) == 0 {
		return s
	}
	now := make(map[recordedPort]bool, len(s.Ports))
	for _, k := range s.Ports {
		now[k] = true
	}
	var earlier []recordedPort
	for _, k := range before.keys {
		if k.Backend == backend.EBPF && !now[k] {
			earlier = append(earlier, k)
		}
	}
	s.Ports = append(earlier, s.Ports...)
	return s
}

// addrs returns the section's addresses with those of an earlier ADD: nothing but DEL takes out the endpoint of an address that the pod
// does not have any more. nil: those are not known.
func (s section) addrs(before recordedPorts) []netip.Addr {
	earlier := slices.ContainsFunc(before.keys, func(k recordedPort) bool { return k.Backend == backend.EBPF })
	if before.unknown && !before.missing || earlier && before.addrs == nil {
		return nil
	}
	out := slices.Clone(before.addrs)
	for _, a := range s.Addrs {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// keysFor returns the keys that a backend may hold of an earlier ADD, nil for not known. An ADD writes its record before its first
// effect, so there are none without a record.
func (r recordedPorts) keysFor(b Backend) []hostport.Key {
	if r.unknown && !r.missing {
		return nil
	}
	return append([]hostport.Key{}, recordKeys(r.of(b))...)
}

// of returns the ports of a backend.
func (r recordedPorts) of(b Backend) []recordedPort {
	var out []recordedPort
	for _, k := range r.keys {
		if k.Backend == b.Name() {
			out = append(out, k)
		}
	}
	return out
}

// backendsOf returns the backends that a record names, in their order; all of them
// without a record.
func (p *plugin) backendsOf(a *cniskel.Args, r recordedPorts) []Backend {
	all := p.chooser().All(a)
	if r.unknown {
		return all
	}
	var out []Backend
	for _, b := range all {
		if len(r.of(b)) > 0 {
			out = append(out, b)
		}
	}
	return out
}

// splitByRecord assigns the ports of a CHECK to the backends that the record names
// for them. A port that the record does not name goes to the backend that would
// publish it now, which will miss it.
func (p *plugin) splitByRecord(ctx context.Context, a *cniskel.Args, r request, recorded recordedPorts) (assignments, error) {
	byName := make(map[string][]port)
	would, err := p.assignBackends(ctx, a, r)
	if err != nil {
		return nil, err
	}
	backendOf := make(map[hostport.Key]string, len(recorded.keys))
	for _, k := range recorded.keys {
		backendOf[k.Key] = k.Backend
	}
	for _, hp := range r.ports {
		name, ok := backendOf[hp.Key]
		if !ok {
			name = would[0].backend.Name()
		}
		byName[name] = append(byName[name], hp)
	}
	var out assignments
	for _, b := range p.chooser().All(a) {
		if ports := byName[b.Name()]; len(ports) > 0 {
			out = append(out, assignment{backend: b, request: r.with(ports)})
		}
	}
	return out, nil
}

// removeSuperseded takes out what an earlier ADD of the attachment published by
// backends that this ADD does not use.
func (p *plugin) removeSuperseded(ctx context.Context, a *cniskel.Args, ref attachments.ID, before recordedPorts, now assignments) error {
	if before.unknown || len(before.keys) == 0 {
		return nil
	}
	var errs []error
	for _, b := range p.backendsOf(a, before) {
		if !now.use(b) {
			errs = append(errs, b.Remove(ctx, a, ref, before.of(b)))
		}
	}
	return errors.Join(errs...)
}

// removeRecorded takes out what an earlier ADD of the attachment published, so
// that a repeated ADD without mappings leaves no old ports.
func (p *plugin) removeRecorded(ctx context.Context, a *cniskel.Args, ref attachments.ID) error {
	ports := p.recordedPorts(ref)
	if len(ports.keys) == 0 {
		return nil
	}
	return p.remove(ctx, a, ref, ports)
}
