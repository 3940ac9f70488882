// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// want is what an attachment asks for, valid, with the pod's addresses in, and
// without a word about who carries it out.
type want struct {
	ref   attachments.Ref
	addrs []netip.Prefix // all the pod has on CNI_IFNAME
	ports []loader.HostPort
	snat  bool
	conf  *Conf // for keys that only some backends know
}

// Backend publishes ports. Remove takes the ports that the attachment's record
// names, nil without one.
type Backend = backend.Chained[want, []portKey, section]

// Job is a prepared ADD.
type Job = backend.Job[section]

// share is the part of an ADD that one backend carries out.
type share struct {
	backend Backend
	want    want
}

// named returns the backends that a record names, in their order; all without
// one.
func (p *plugin) named(a *cniskel.Args, h held) []Backend {
	all := p.chooser().All(a)
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
// does not know of is for the backend to miss that would carry it out now.
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
	for _, b := range p.chooser().All(a) {
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
