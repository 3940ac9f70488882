// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// want is what an attachment asks for, valid, with the pod's addresses in, and
// without a word about who carries it out.
type want struct {
	ref   attachments.Ref
	addrs []netip.Prefix // all the pod has on CNI_IFNAME
	ports []loader.HostPort
	snat  bool
	conf  *Conf // for keys that only some back ends know
}

// Backend carries out what attachments want. The plugin asks the one that its
// configuration names, or the first that can; DEL and CHECK ask those that the
// attachment's record names, without a record all.
type Backend interface {
	// Name is the back end's word in configurations and records.
	Name() string
	// Prepare opens what the job needs and finds what rules it out: errors are
	// CNI errors. It has no effect on the pod or its ports.
	Prepare(ctx context.Context, a *cniskel.Args, w want) (Job, error)
	// Remove takes out the ports of an attachment and everything of it that
	// carries them: those given, or with nil all that it can find. Missing is
	// success.
	Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, ports []portKey) error
	// Check compares what is there with what is wanted.
	Check(ctx context.Context, a *cniskel.Args, w want) error
	// Sweep removes what no attachment explains. valid are those of the network
	// that the runtime knows.
	Sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.Ref]bool) error
	// Status says why Prepare would fail now.
	Status(ctx context.Context, a *cniskel.Args) error
}

// Job is a prepared ADD. The caller must Close it.
type Job interface {
	// Do publishes the ports, and pushes what takes each effect back before the
	// effect: the caller rolls back on an error, here or later.
	Do(ctx context.Context, undos *rollback.Stack) error
	// Describe adds to the record what Remove will have to know.
	Describe(s *section)
	Close() error
}

// share is the part of an ADD that one back end carries out.
type share struct {
	backend Backend
	want    want
}

// named returns the back ends that a record names, in their order; all without
// one.
func (p *plugin) named(a *cniskel.Args, h held) []Backend {
	all := p.backends(a)
	if h.unknown {
		return all
	}
	var out []Backend
	for _, b := range all {
		if len(h.of(b)) > 0 {
			out = append(out, b)
		}
	}
	return out
}

// recorded divides what is wanted as the record says it was. What the record
// does not know of is for the back end to miss that would carry it out now.
func (p *plugin) recorded(ctx context.Context, a *cniskel.Args, w want) ([]share, error) {
	h, byName := p.held(w.ref), make(map[string][]loader.HostPort)
	would, err := p.divide(ctx, a, w)
	if err != nil {
		return nil, err
	}
	for _, hp := range w.ports {
		name := would[0].backend.Name()
		for _, k := range h.keys {
			if k.HostIP == hp.HostIP && k.Proto == hp.Proto && k.Port == hp.Port {
				name = k.Backend
			}
		}
		byName[name] = append(byName[name], hp)
	}
	var out []share
	for _, b := range p.backends(a) {
		if ports := byName[b.Name()]; len(ports) > 0 {
			part := w
			part.ports = ports
			out = append(out, share{b, part})
		}
	}
	return out, nil
}

// keysOf is what a record holds of the shares.
func keysOf(shares []share) []portKey {
	var keys []portKey
	for _, s := range shares {
		for _, hp := range s.want.ports {
			keys = append(keys, portKey{HostIP: hp.HostIP, Proto: hp.Proto, Port: hp.Port, PodIP: hp.PodIP, PodPort: hp.PodPort, Backend: s.backend.Name()})
		}
	}
	return keys
}

// sweep lets every back end drop what no attachment explains.
func (p *plugin) sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.Ref]bool) error {
	var errs []error
	for _, b := range p.backends(a) {
		errs = append(errs, b.Sweep(ctx, a, network, valid))
	}
	return errors.Join(errs...)
}
