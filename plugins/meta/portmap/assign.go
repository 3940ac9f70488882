// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Backend publishes ports. Remove takes the ports that the attachment's record
// names, nil without one.
type Backend interface {
	backend.Base
	Prepare(ctx context.Context, a *cniskel.Args, r request) (Job, error)
	Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, ports []recordedPort) error
	Check(ctx context.Context, a *cniskel.Args, r request) error
}

// Job is a prepared ADD. Record adds to the attachment's record what Remove has to know.
type Job interface {
	Apply(ctx context.Context, rb *rollback.Stack) error
	Record(s *section)
	Close() error
}

func (p *plugin) chooser() backend.Chooser[Backend] {
	return backend.Chooser[Backend]{
		Key: "backend", EBPF: ebpf{p.Deps}, Netfilter: p.Netfilter,
		Tables: func(t netfilter.Tables) Backend { return tables{t, p.Deps} },
		// The device of macvlan, ipvlan, vlan and host-device has no host veth.
		FallbackFor: []error{loader.ErrUnavailable, loader.ErrNoHostEnd},
	}
}

// assignment is the part of a request that one backend carries out.
type assignment struct {
	backend Backend
	request request
	job     Job // nil before prepare
}

// assignments are the parts of one request.
type assignments []assignment

// assign finds the backend of each port and prepares the jobs. It changes
// nothing. The caller must close the result.
func (p *plugin) assign(ctx context.Context, a *cniskel.Args, r request) (assignments, error) {
	parts, err := p.assignBackends(ctx, a, r)
	if err != nil {
		return nil, err
	}
	err = parts.prepare(ctx, a)
	if err == nil {
		return parts, nil
	}
	if parts, err = p.fallback(ctx, a, r, err); err != nil {
		return nil, err
	}
	return parts, parts.prepare(ctx, a)
}

// wanted returns the backend that is asked for, and whether eBPF is tried first.
func (p *plugin) wanted(ctx context.Context, a *cniskel.Args, r request) (name string, triesEBPF bool, _ error) {
	c := p.chooser()
	name, err := c.Wanted(a, r.conf.Backend)
	if err != nil {
		return "", false, err
	}
	only := ""
	if r.hasAllowedSources() {
		only = "allowedSources"
	}
	triesEBPF, err = c.TriesEBPFBesideFirewalld(ctx, a, name, only)
	return name, triesEBPF, err
}

// hasAllowedSources reports whether a port may be open to some clients only, which
// no tables can do.
func (r request) hasAllowedSources() bool {
	return slices.ContainsFunc(r.ports, func(hp port) bool { return len(hp.AllowedSources) > 0 }) || len(r.conf.AllowedSources) > 0
}

// assignBackends gives all ports to the backend that is wanted. Where that is eBPF
// by auto, the ports that eBPF cannot publish go to netfilter.
func (p *plugin) assignBackends(ctx context.Context, a *cniskel.Args, r request) (assignments, error) {
	wanted, triesEBPF, err := p.wanted(ctx, a, r)
	if err != nil {
		return nil, err
	}
	if !triesEBPF {
		return p.assignAll(ctx, a, wanted, r)
	}
	var can, cannot []port
	for _, hp := range r.ports {
		switch {
		case hp.ebpfUnsupported == nil:
			can = append(can, hp)
		case wanted == backend.EBPF || p.Netfilter == nil:
			return nil, hp.ebpfUnsupported
		default:
			a.Log.Warn("a mapping falls back to netfilter", log.Stringer("port", hp.Key), log.NamedError(log.KeyReason, hp.ebpfUnsupported))
			cannot = append(cannot, hp)
		}
	}
	var out assignments
	if len(can) > 0 {
		out = append(out, assignment{backend: ebpf{p.Deps}, request: r.with(can)})
	}
	if len(cannot) > 0 {
		rest, err := p.assignAll(ctx, a, backend.Auto, r.with(cannot))
		if err != nil {
			return nil, err
		}
		out = append(out, rest...)
	}
	return out, nil
}

// assignAll gives all ports to the tables of that name.
func (p *plugin) assignAll(ctx context.Context, a *cniskel.Args, name string, r request) (assignments, error) {
	b, err := p.selectTables(ctx, a, name, r)
	return assignments{{backend: b, request: r}}, err
}

// fallback gives all ports to netfilter when eBPF turned out to be unable to
// publish them, unless eBPF was asked for by name.
func (p *plugin) fallback(ctx context.Context, a *cniskel.Args, r request, why error) (assignments, error) {
	b, err := p.chooser().Fallback(ctx, a, r.conf.Backend, why, func(ctx context.Context, a *cniskel.Args, name string) (Backend, error) {
		return p.selectTables(ctx, a, name, r)
	})
	return assignments{{backend: b, request: r}}, err
}

// selectTables returns the tables of that name. With auto, conditions and a chain
// that marks decide, which only one tool understands.
func (p *plugin) selectTables(ctx context.Context, a *cniskel.Args, name string, r request) (Backend, error) {
	// Rather no port than one that is open to all clients.
	if r.hasAllowedSources() {
		return nil, cnierr.Unsupported("allowedSources", r.conf.AllowedSources, "the "+name+" backend does not have it: it needs ebpf")
	}
	if dialect := r.conf.conditionDialect(); name == backend.Auto && dialect != "" {
		name = dialect
	}
	return p.chooser().Select(ctx, a, name)
}

// prepare prepares the job of each part. After an error none is open.
func (parts assignments) prepare(ctx context.Context, a *cniskel.Args) (err error) {
	for i := range parts {
		if parts[i].job, err = parts[i].backend.Prepare(ctx, a, parts[i].request); err != nil {
			parts[:i].close()
			return err
		}
	}
	return nil
}

// close releases the jobs' descriptors.
func (parts assignments) close() {
	for _, part := range parts {
		_ = part.job.Close()
	}
}

// use reports whether a backend has a part.
func (parts assignments) use(b Backend) bool {
	return slices.ContainsFunc(parts, func(part assignment) bool { return part.backend.Name() == b.Name() })
}

// publishedByAny reports whether some backend has all the ports, as for a pod
// that upstream's plugins attached.
func (p *plugin) publishedByAny(ctx context.Context, a *cniskel.Args, r request) bool {
	return slices.ContainsFunc(p.chooser().All(a), func(b Backend) bool { return b.Check(ctx, a, r) == nil })
}
