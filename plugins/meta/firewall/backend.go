// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// want is what an attachment asks for, valid, with the pod's addresses in, and
// without a word about who carries it out.
type want struct {
	ref   attachments.Ref
	addrs []netip.Prefix   // those to admit: all the pod has on CNI_IFNAME
	prev  *types100.Result // the previous result
	conf  *Conf            // for keys that only some back ends know
}

// gateways returns those of the previous result.
func (w want) gateways() []netip.Addr {
	var out []netip.Addr
	for _, ip := range w.prev.IPs {
		if a, ok := netip.AddrFromSlice(ip.Gateway); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// Backend carries out what attachments want. The plugin asks the one that its
// configuration names, or the first that can; DEL and CHECK ask the one that
// the attachment's record names, DEL without a record all.
type Backend interface {
	// Name is the back end's word in configurations and records.
	Name() string
	// Prepare opens what the job needs and finds what rules it out: errors are
	// CNI errors. It has no effect on the pod.
	Prepare(ctx context.Context, a *cniskel.Args, w want) (Job, error)
	// Remove takes out everything of an attachment. s is what its record says,
	// nil without one. Missing is success.
	Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, s *section) error
	// Check compares what is there with what is wanted. It changes nothing.
	Check(ctx context.Context, a *cniskel.Args, w want) error
	// Sweep removes what no attachment explains. valid are those of the network
	// that the runtime knows.
	Sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.Ref]bool) error
	// Status says why Prepare would fail now.
	Status(ctx context.Context, a *cniskel.Args) error
}

// Job is a prepared ADD. The caller must Close it.
type Job interface {
	// Do admits the pod, and pushes what takes each effect back before the
	// effect: the caller rolls back on an error, here or later.
	Do(ctx context.Context, undos *rollback.Stack) error
	// Describe adds to the record what Remove will have to know.
	Describe(s *section)
	Close() error
}

// section is what an attachment record holds of this plugin.
type section struct {
	Backend string       `json:"backend"`
	Addrs   []netip.Addr `json:"addrs,omitempty"`
	// Bridge is isolated for the attachment; IsolatedBy are the tables that do
	// it when the back end has none.
	Bridge     string `json:"bridge,omitempty"`
	IsolatedBy string `json:"isolatedBy,omitempty"`
	Zone       string `json:"zone,omitempty"` // of firewalld

	ref attachments.Ref // of the record, where several are listed
}

// same reports that two sections say the same, so that the work of one is that
// of the other.
func (s *section) same(o section) bool {
	return s.Backend == o.Backend && slices.Equal(s.Addrs, o.Addrs) && s.Bridge == o.Bridge && s.IsolatedBy == o.IsolatedBy && s.Zone == o.Zone
}

// recorded returns the back ends that may hold something of an attachment, and
// what its record says of it: all and nil without one that can be read, none if
// the pod was not admitted.
func (p *plugin) recorded(a *cniskel.Args, ref attachments.Ref) ([]Backend, *section) {
	all := p.backends(a)
	rec, err := p.Records.Load(ref)
	if err != nil || rec.Corrupt {
		return all, nil
	}
	s := new(section)
	if ok, err := rec.Section(Name, s); err != nil || !ok {
		if err != nil {
			return all, nil
		}
		return nil, nil
	}
	for _, b := range all {
		if b.Name() == s.Backend {
			return []Backend{b}, s
		}
	}
	return all, nil
}

// sweep lets every back end drop what no attachment explains.
func (p *plugin) sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.Ref]bool) error {
	var errs []error
	for _, b := range p.backends(a) {
		errs = append(errs, b.Sweep(ctx, a, network, valid))
	}
	return errors.Join(errs...)
}
