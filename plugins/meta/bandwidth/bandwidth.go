// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "bandwidth"

// The backends.
const (
	BackendAuto = "auto" // edt where the kernel has what it needs, else tbf
	BackendEDT  = "edt"
	BackendTBF  = "tbf"
)

// Opener opens the node's datapath.
type Opener = backend.Opener

// Deps are the plugin's dependencies. All fields are required.
type Deps struct {
	Opener
	// Backend returns the node's default: auto, edt, tbf, or empty for auto.
	Backend func(a *cniskel.Args) (string, error)
	Records *attachments.Dir
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name:     Name,
		Usage:    version.About(Name),
		Versions: version.All(),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       p.gc,
		Status:   p.status,
	}
}

// section is what an attachment record holds of this plugin: what DEL takes out
// and CHECK looks for. Its JSON is read by later versions.
type section struct {
	NetNS   uint64  `json:"netnsInode,omitempty"` // a path may name another namespace later
	Backend string  `json:"backend"`
	Reason  string  `json:"reason"` // why that backend
	Ingress *Limit  `json:"ingress,omitempty"`
	Egress  *Limit  `json:"egress,omitempty"`
	Subnets subnets `json:"subnets"`

	// The host veth of the pod; empty when it has none.
	HostIfName  string `json:"hostIfName,omitempty"`
	HostIfindex int    `json:"hostIfindex,omitempty"`
	// Policed says that the node drops what bypasses the egress limit of edt, at the host veth or at the parent of the pod's device. Records of builds before it do not have it.
	Policed bool `json:"policed,omitempty"`
	// OffFastPath says that the fast path would pass the policer by.
	OffFastPath bool `json:"offFastPath,omitempty"`
	// IFB is the intermediate device: of egress beside the host veth, of ingress
	// in the pod netns where there is no host veth.
	IFB string `json:"ifb,omitempty"`
	// Alone says that no datapath was loaded, which the pod could have been made known to.
	Alone bool `json:"alone,omitempty"`
	// Clsact says that the qdisc which carries the redirection to the IFB was made by the plugin.
	Clsact bool `json:"clsact,omitempty"`
	// Addrs are the pod's. Records of builds before it have none, not even an empty list.
	Addrs []netip.Addr `json:"addrs"`
}

// held is what the datapath holds of the attachment.
func (s *section) held() loader.Held {
	return loader.Held{Addrs: s.Addrs, HostIfindex: s.HostIfindex}
}

// networks are those that the limits are for or not for, nil for not known.
func (s *section) networks() []netip.Prefix {
	if s.Backend == "" {
		return nil // no record
	}
	return append(append([]netip.Prefix{}, s.Subnets.Shaped...), s.Subnets.Unshaped...)
}

// inside reports whether the pod's device has no end on the node.
func (s *section) inside() bool { return s.HostIfindex == 0 }

// features are the endpoint's: they keep packets on the ways that have a qdisc.
func (s *section) features() loader.Feature {
	var f loader.Feature
	if s.inside() {
		return 0
	}
	if s.Ingress != nil {
		f |= loader.FeatureQueueRx
	}
	if s.Egress != nil && s.Backend == BackendTBF || s.OffFastPath {
		f |= loader.FeatureQueueTx
	}
	return f
}
