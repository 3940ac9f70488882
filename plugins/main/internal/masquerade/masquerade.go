// SPDX-License-Identifier: Apache-2.0

// Package masquerade is ipMasq and ipMasqBackend, which several main plugins
// have: the keys, and the verbs as far as they concern them. It owns no state;
// what a pod's masquerading consists of belongs to the back end.
package masquerade

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// Conf holds the keys. Embed it in a plugin's configuration.
type Conf struct {
	IPMasq        bool    `json:"ipMasq"`
	IPMasqBackend *string `json:"ipMasqBackend"`
}

// MasqueradeKey is where these keys go, see keys.Object.
func (c *Conf) MasqueradeKey(name string) any {
	switch name {
	case "ipmasq":
		return &c.IPMasq
	case "ipmasqbackend":
		return &c.IPMasqBackend
	}
	return nil
}

// Validate checks the back end's name.
func (c Conf) Validate() error {
	if c.IPMasqBackend == nil {
		return nil
	}
	switch v := *c.IPMasqBackend; v {
	case "", backendAuto, backendEBPF, netfilter.NameIPTables, netfilter.NameNFTables:
	default:
		return cnierr.Config("ipMasqBackend", v, `must be "auto", "ebpf", "iptables" or "nftables"`)
	}
	return nil
}

// Devices is the part of the datapath that carries a pod's device.
type Devices interface {
	Enable(ctx context.Context, ep loader.Endpoint, f loader.Feature) error
	Disable(ctx context.Context, owner uint64, f loader.Feature) error
	CheckEndpoint(ctx context.Context, ep loader.Endpoint, f loader.Feature) error
}

// Datapath is what is needed of *loader.Datapath.
type Datapath interface {
	Devices
	Close() error
}

// Node opens the node's datapath.
type Node struct {
	// Open loads the datapath when nothing is loaded; an error that is
	// loader.ErrUnavailable carries the probe's reason.
	Open func(ctx context.Context, a *cniskel.Args) (Datapath, error)
	// OpenExisting never loads: loader.ErrNotLoaded when nothing is.
	OpenExisting func(ctx context.Context, a *cniskel.Args) (Datapath, error)
	// Netfilter returns the node's other way, with an error if the node's
	// configuration cannot be read; it can be used with the defaults then. Nil:
	// there is only eBPF.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
	// List returns the attachment records of a network.
	List func(network string) ([]*attachments.Record, error)
}

// Session is the masquerading part of one ADD. A nil Session does nothing.
type Session struct {
	backend string
	job     Job
}

// Begin opens what Start needs, before the ADD's first effect. The caller must
// Close the result.
func (n Node) Begin(ctx context.Context, a *cniskel.Args, c Conf) (*Session, error) {
	b, auto, err := n.choose(ctx, a, c)
	if err != nil {
		return nil, err
	}
	job, err := b.Prepare(ctx, a)
	if err != nil {
		if b, err = n.instead(ctx, a, auto, err); err != nil {
			return nil, err
		}
		if job, err = b.Prepare(ctx, a); err != nil {
			return nil, err
		}
	}
	return &Session{b.Name(), job}, nil
}

// Backend is the name of the back end, for the attachment record: Stop and
// Check want it back. It is empty for a nil Session.
func (s *Session) Backend() string {
	if s == nil {
		return ""
	}
	return s.backend
}

// Start masquerades the pod; what takes it back is pushed to undos first.
func (s *Session) Start(ctx context.Context, ep loader.Endpoint, undos *rollback.Stack) error {
	if s == nil {
		return nil
	}
	return s.job.Do(ctx, ep, undos)
}

// Close releases descriptors; the masquerading goes on.
func (s *Session) Close() {
	if s != nil {
		_ = s.job.Close()
	}
}

// Stop ends the masquerading of an attachment. backend and addrs are what its
// record says; with an empty name every back end is asked, and with nil addresses
// everything that carries the attachment's name goes, unless the record of another
// attachment has it. Missing is success.
func (n Node) Stop(ctx context.Context, a *cniskel.Args, ref attachments.Ref, backend string, addrs []netip.Prefix) error {
	var spare []netip.Prefix
	if addrs == nil {
		var err error
		if spare, err = n.others(ref); err != nil {
			return cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
		}
	}
	var errs []error
	for _, b := range n.holders(a, backend) {
		errs = append(errs, b.Remove(ctx, a, ref, addrs, spare))
	}
	return errors.Join(errs...)
}

// others are the addresses of the container's other attachments of the network:
// with iptables they share the name of the rules.
func (n Node) others(ref attachments.Ref) ([]netip.Prefix, error) {
	records, err := n.List(ref.Network)
	var out []netip.Prefix
	for _, r := range records {
		if r.ContainerID != ref.ContainerID || r.Ref == ref {
			continue
		}
		for plugin := range r.Plugins {
			var s struct {
				Addrs      []netip.Prefix `json:"addrs"`
				Masquerade string         `json:"masquerade"`
			}
			if _, err := r.Section(plugin, &s); err == nil && s.Masquerade != "" {
				out = append(out, s.Addrs...)
			}
		}
	}
	return out, err
}

// Check compares what the recorded back end holds with what Start made for ep.
// What differs has code 102. Without a record, as for a pod of the reference
// plugins, any back end that has everything will do; the error is that of the one
// that a new ADD would take.
func (n Node) Check(ctx context.Context, a *cniskel.Args, ep loader.Endpoint, c Conf, backend string) error {
	holders := n.holders(a, backend)
	if len(holders) == 1 {
		return holders[0].Check(ctx, a, ep)
	}
	b, _, err := n.choose(ctx, a, c)
	if err != nil {
		return err
	}
	differs := b.Check(ctx, a, ep)
	if differs == nil || slices.ContainsFunc(holders, func(h Backend) bool { return h.Name() != b.Name() && h.Check(ctx, a, ep) == nil }) {
		return nil
	}
	return differs
}

// GC removes what is masqueraded in the network for attachments that neither
// the runtime nor a record knows: those of a build or suite that kept none.
func (n Node) GC(ctx context.Context, a *cniskel.Args) error {
	conf, err := cniconf.LoadCommon(a.StdinData)
	if err != nil {
		return err
	}
	valid, err := cniconf.ValidRefs(a.StdinData, conf.Name)
	if err != nil {
		return err
	}
	records, err := n.List(conf.Name)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
	}
	keep := slices.Collect(maps.Keys(valid))
	for _, r := range records {
		keep = append(keep, r.Ref)
	}
	var errs []error
	for _, b := range n.backends(a) {
		errs = append(errs, b.Sweep(ctx, conf.Name, keep))
	}
	return errors.Join(errs...)
}

// Status says why Begin would fail now.
func (n Node) Status(ctx context.Context, a *cniskel.Args, c Conf) error {
	b, auto, err := n.choose(ctx, a, c)
	if err == nil {
		err = b.Status(ctx, a)
	}
	if errors.Is(err, loader.ErrUnavailable) {
		_, err = n.instead(ctx, a, auto, err)
	}
	return cnierr.Unavailable(err)
}
