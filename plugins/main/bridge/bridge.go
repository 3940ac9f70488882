// SPDX-License-Identifier: Apache-2.0

// Package bridge is the main plugin that puts a pod on a Linux bridge: a veth
// pair, addresses from an IPAM plugin, optionally the bridge as gateway, VLANs,
// a source MAC check and masquerading.
//
// It owns the bridge it makes, the veth pair, the bridge's gateway addresses and
// the section "bridge" of the attachment record, by which DEL and GC find them
// without the pod's namespace, prevResult or a usable configuration.
// Masquerading is done by the eBPF datapath, which a configuration without
// ipMasq never opens; other back ends are refused by name.
package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/pkg/version"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "bridge"

// IPAM is what the plugin needs of *delegate.Runner.
type IPAM interface {
	Add(ctx context.Context, a *cniplugin.Args, ipamType string) (*types100.Result, error)
	Del(ctx context.Context, a *cniplugin.Args, ipamType string) error
	Check(ctx context.Context, a *cniplugin.Args, ipamType string) error
	GC(ctx context.Context, a *cniplugin.Args, ipamType string) error
	Status(ctx context.Context, a *cniplugin.Args, ipamType string) error
}

// Devices is the part of the datapath that carries a pod's device.
type Devices interface {
	Enable(ctx context.Context, ep loader.Endpoint, f loader.Feature) error
	Disable(ctx context.Context, owner uint64, f loader.Feature) error
	CheckEndpoint(ctx context.Context, ep loader.Endpoint, f loader.Feature) error
}

// Datapath is what the plugin needs of *loader.Datapath.
type Datapath interface {
	Devices
	Close() error
}

// Records is what the plugin needs of *store.Dir.
type Records interface {
	Begin(ref store.Ref, netnsPath, plugin string, data any) error
	Complete(ref store.Ref, plugin string, data any) error
	Load(ref store.Ref) (*store.Record, error)
	Remove(ref store.Ref, plugin string) error
	List(network string) ([]*store.Record, error)
}

// NFT runs the nft program, which macspoofchk needs.
type NFT interface {
	// Available returns an error that says why nft cannot be run.
	Available() error
	// Run gives stdin to nft and returns its output; the error holds its stderr.
	Run(ctx context.Context, stdin []byte, args ...string) ([]byte, error)
}

// Deps are the plugin's ways to the world. All but NFT are required.
type Deps struct {
	IPAM    IPAM
	Records Records
	// Open returns the node's datapath and loads it when nothing is loaded;
	// an error that is loader.ErrUnavailable carries the probe's reason.
	Open func(ctx context.Context, a *cniplugin.Args) (Datapath, error)
	// OpenExisting never loads: loader.ErrNotLoaded when nothing is.
	OpenExisting func(ctx context.Context, a *cniplugin.Args) (Datapath, error)
	// NFT may be nil: the nft of PATH.
	NFT NFT
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniplugin.Plugin {
	if d.NFT == nil {
		d.NFT = nftProgram{}
	}
	p := &plugin{d}
	return &cniplugin.Plugin{
		Name:     Name,
		About:    version.About(Name),
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
	Bridge     string          `json:"bridge"`
	HostIfName string          `json:"hostIfName"`
	HostIndex  int             `json:"hostIfIndex,omitempty"` // 0 until ADD completes
	HostMAC    string          `json:"hostMAC"`               // chosen by ADD: together with the name it identifies the device
	MAC        string          `json:"mac,omitempty"`
	Addrs      []netip.Prefix  `json:"addrs,omitempty"`
	Masquerade bool            `json:"masquerade,omitempty"`
	SpoofCheck bool            `json:"macspoofchk,omitempty"`
	IPAM       json.RawMessage `json:"ipam,omitempty"` // the configuration's, for a DEL that comes without one
}

func (s section) hostMAC() net.HardwareAddr {
	mac, err := net.ParseMAC(s.HostMAC)
	if err != nil {
		return nil
	}
	return mac
}

// openError gives an error of Deps.Open its CNI code: unavailable when the
// back end cannot run on this node, its own when it has one (a mistake in the
// node's configuration).
func openError(err error, unavailable uint) error {
	var coded *cnierr.Error
	switch {
	case errors.Is(err, loader.ErrUnavailable):
		return cnierr.Wrap(unavailable, err, "ipMasq: the ebpf back end cannot run on this node")
	case errors.As(err, &coded):
		return err
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "ipMasq: open the datapath")
}
