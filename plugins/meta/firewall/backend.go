// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// request is what an attachment asks for. It is valid, and says nothing about
// which backend carries it out.
type request struct {
	ref   attachments.ID
	addrs []netip.Prefix   // those to admit: all the pod has on CNI_IFNAME
	prev  *types100.Result // the previous result
	conf  *Conf            // for keys that only some backends know
	pod   loader.NetworkPolicyPod
}

// gateways returns those of the previous result.
func (r request) gateways() []netip.Addr {
	var out []netip.Addr
	for _, ip := range r.prev.IPs {
		if a, ok := netip.AddrFromSlice(ip.Gateway); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// Backend admits pods. What Remove needs to know is the section of the
// attachment's record, nil without one.
type Backend interface {
	backend.Base
	Prepare(ctx context.Context, a *cniskel.Args, r request) (Job, error)
	Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, s *section) error
	Check(ctx context.Context, a *cniskel.Args, r request) error
}

// Job is a prepared ADD. Record adds to the attachment's record what Remove has to know.
type Job interface {
	Apply(ctx context.Context, rb *rollback.Stack) error
	Record(s *section)
	Close() error
}

// section is what an attachment record holds of this plugin.
type section struct {
	Backend string       `json:"backend"`
	Addrs   []netip.Addr `json:"addrs,omitempty"`
	// Bridge is isolated for the attachment; IsolatedBy are the tables that do
	// it, and call the admin chain, when the backend has none.
	Bridge     string `json:"bridge,omitempty"`
	IsolatedBy string `json:"isolatedBy,omitempty"`
	Zone       string `json:"zone,omitempty"` // of firewalld

	ref attachments.ID // of the record, where several are listed
}

// held is what the datapath holds of the attachment. Nothing is known without a record.
func (s *section) held() loader.Held {
	if s == nil {
		return loader.Held{}
	}
	return loader.Held{Addrs: s.Addrs}
}

// same reports that two sections say the same, so that the work of one is that
// of the other.
func (s *section) same(o section) bool {
	return s.Backend == o.Backend && slices.Equal(s.Addrs, o.Addrs) && s.Bridge == o.Bridge && s.IsolatedBy == o.IsolatedBy && s.Zone == o.Zone
}

// recorded returns the backends that may hold something of an attachment, and
// what its record says of it: all and nil without one that can be read, none if
// the pod was not admitted.
func (p *plugin) recorded(a *cniskel.Args, ref attachments.ID) ([]Backend, *section) {
	all := p.chooser().All(a)
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
