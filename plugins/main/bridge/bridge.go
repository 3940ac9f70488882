// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"net/netip"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/masquerade"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "bridge"

// IPAM is what the plugin needs of *delegate.Runner.
type IPAM = ipam.Plugin

// Netfilter is what the plugin needs of *choice.Node.
type Netfilter = masquerade.Netfilter

// NFT runs the nft program, which macspoofchk needs.
type NFT interface {
	// Available returns an error that says why nft cannot be run.
	Available() error
	// Run gives stdin to nft and returns its output; the error holds its stderr.
	Run(ctx context.Context, stdin []byte, args ...string) ([]byte, error)
}

// Opener opens the node's datapath.
type Opener = masquerade.Opener

// Deps are the plugin's dependencies. NFT and Netfilter may be nil.
type Deps struct {
	IPAM    IPAM
	Records *attachments.Dir
	Opener
	// Netfilter returns the node's other way to masquerade; nil: there is none.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
	// NFT may be nil: the nft of PATH.
	NFT NFT
}

type plugin struct{ Deps }

func (p *plugin) masq() masquerade.Node {
	return masquerade.Node{Opener: p.Opener, Netfilter: p.Netfilter, List: p.Records.List}
}

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	if d.NFT == nil {
		d.NFT = nftProgram{lock: filepath.Join(filepath.Dir(d.Records.Path()), "macspoofchk.lock")}
	}
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

// section is what an attachment record holds of this plugin: all that DEL and
// GC need to undo the ADD. Its JSON is read by later versions.
type section struct {
	veth.Recorded
	Bridge     string         `json:"bridge"`
	PodMAC     string         `json:"mac,omitempty"`
	Addrs      []netip.Prefix `json:"addrs,omitempty"`
	Masquerade string         `json:"masquerade,omitempty"` // the backend that does it; empty: none
	SpoofCheck bool           `json:"macspoofchk,omitempty"`
	// SpoofBackend is empty for nftables, as in records of builds that had no other way.
	SpoofBackend string          `json:"macspoofchkBackend,omitempty"`
	IPAM         json.RawMessage `json:"ipam,omitempty"` // the configuration's, for a DEL that comes without one
}
