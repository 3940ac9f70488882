// SPDX-License-Identifier: Apache-2.0

// Package masquerade is ipMasq and ipMasqBackend, which several main plugins
// have: the keys, and the verbs as far as they concern them. It owns no state;
// what a pod's masquerading consists of belongs to the backend.
package masquerade

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Conf holds the keys. Embed it in a plugin's configuration.
type Conf struct {
	IPMasq        bool    `json:"ipMasq"`
	IPMasqBackend *string `json:"ipMasqBackend"`
}

// Validate checks the backend's name.
func (c Conf) Validate() error {
	if c.IPMasqBackend == nil {
		return nil
	}
	switch v := *c.IPMasqBackend; v {
	case "", backend.Auto, backend.EBPF, netfilter.NameIPTables, netfilter.NameNFTables:
	default:
		return cnierr.Config("ipMasqBackend", v, `must be "auto", "ebpf", "iptables" or "nftables"`)
	}
	return nil
}

// backend is the backend that the configuration names, empty for none.
func (c Conf) backend() string {
	if c.IPMasqBackend == nil {
		return ""
	}
	return *c.IPMasqBackend
}

// Opener opens the node's datapath.
type Opener = backend.Opener

// prefix begins the messages of errors.
const prefix = "ipMasq: "

// Node is where pods are masqueraded.
type Node struct {
	Opener
	// Netfilter returns the node's netfilter side, see backend.Chooser. Nil: eBPF
	// is the only backend.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
	// List returns the attachment records of a network, or of all networks for an
	// empty name.
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
	b, err := n.choose(ctx, a, c)
	if err != nil {
		return nil, err
	}
	b, job, err := backend.Prepare(b,
		func(b Backend) (Job, error) { return b.Prepare(ctx, a) },
		func(why error) (Backend, error) { return n.fallback(ctx, a, c, why) })
	if err != nil {
		return nil, err
	}
	return &Session{b.Name(), job}, nil
}

// Backend is the name of the backend, for the attachment record: Stop and
// Check want it back. It is empty for a nil Session.
func (s *Session) Backend() string {
	if s == nil {
		return ""
	}
	return s.backend
}

// CheckFree returns an error of code 103 if the pod of another attachment has one of
// addrs. Ask it as soon as the addresses are known: a route to the new pod would
// cut the other one off.
func (s *Session) CheckFree(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error {
	if s == nil {
		return nil
	}
	return s.job.CheckFree(ctx, ref, addrs)
}

// Start masquerades the pod. It pushes what takes that back to rb first.
func (s *Session) Start(ctx context.Context, ep loader.Endpoint, rb *rollback.Stack) error {
	if s == nil {
		return nil
	}
	return s.job.Apply(ctx, ep, rb)
}

// Close releases descriptors; the masquerading goes on.
func (s *Session) Close() {
	if s != nil {
		_ = s.job.Close()
	}
}

// Stop ends the masquerading of an attachment. backend and addrs are what its
// record says; with an empty name every backend is asked, and with nil addresses
// everything that carries the attachment's name goes, unless the record of another
// attachment has it. Missing is success.
func (n Node) Stop(ctx context.Context, a *cniskel.Args, ref attachments.ID, backend string, addrs []netip.Prefix) error {
	h := held{addrs: addrs}
	if addrs == nil {
		var err error
		if h.spare, err = n.others(ref); err != nil {
			return cnierr.Wrap(cnierr.CodeState, err, "list attachment records")
		}
	}
	var errs []error
	for _, b := range n.chooser().Recorded(a, backend) {
		errs = append(errs, b.Remove(ctx, a, ref, h))
	}
	return errors.Join(errs...)
}

// others are the addresses of the container's other attachments of the network:
// with iptables they share the name of the rules.
func (n Node) others(ref attachments.ID) ([]netip.Prefix, error) {
	records, err := n.List(ref.Network)
	var out []netip.Prefix
	for _, r := range records {
		if r.ContainerID != ref.ContainerID || r.ID == ref {
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

// Check compares what the recorded backend holds with what Start made for ep.
// What differs has code 102. Without a record, as for a pod of upstream
// plugins, any backend that has everything will do; the error is that of the one
// that a new ADD would take.
func (n Node) Check(ctx context.Context, a *cniskel.Args, ep loader.Endpoint, c Conf, recorded string) error {
	holders := n.chooser().Recorded(a, recorded)
	if len(holders) == 1 {
		return holders[0].Check(ctx, a, ep)
	}
	b, err := n.choose(ctx, a, c)
	if err != nil {
		return err
	}
	return backend.CheckUnrecorded(b, holders, func(b Backend) error { return b.Check(ctx, a, ep) })
}

// Sweep removes what is masqueraded in the network for attachments that neither
// the runtime nor a record knows. It is the last part of a main plugin's GC.
func (n Node) Sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error {
	return n.chooser().Sweep(ctx, a, network, valid)
}

// Status says why Begin would fail now.
func (n Node) Status(ctx context.Context, a *cniskel.Args, c Conf) error {
	b, err := n.choose(ctx, a, c)
	return backend.Status(ctx, a, b, err, func(why error) (Backend, error) { return n.fallback(ctx, a, c, why) })
}
