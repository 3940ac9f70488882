// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Values of the keys backend and ipMasqBackend, besides the names of tables.
const (
	Auto = "auto"
	EBPF = "ebpf"
)

// Netfilter is what plugins need of *choice.Node.
type Netfilter interface {
	Default() string
	FirewallDefault() string
	Select(ctx context.Context, name string) (netfilter.Tables, netfilter.Choice, error)
	All() []netfilter.Tables
	FirewalldRuns(ctx context.Context) bool
	Admit(ctx context.Context, from string) []string
	CallAdmin(ctx context.Context, f netfilter.Firewall) error
	CheckAdmin(ctx context.Context, f netfilter.Firewall) error
}

// Chooser knows a plugin's backends and chooses among them.
type Chooser[B Base] struct {
	// Key is the key of the configuration that names a backend, for errors.
	Key string
	// Prefix begins the messages of errors, as in "ipMasq: ".
	Prefix string
	// EBPF is preferred.
	EBPF B
	// Tables makes a backend of netfilter tables.
	Tables func(t netfilter.Tables) B
	// Others are backends besides eBPF and tables.
	Others []B
	// Netfilter returns the node's netfilter side. With a mistake in the node's
	// configuration it returns an error beside one that works with the defaults.
	// Nil: eBPF is the only backend.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
	// Default returns the node's default backend. Nil: Netfilter.Default.
	Default func(node Netfilter) string
	// FallbackFor are the errors of eBPF for which the tables take over. Nil:
	// loader.ErrUnavailable.
	FallbackFor []error
}

// All returns the backends in the order of preference, those that cannot run
// included.
func (c Chooser[B]) All(a *cniskel.Args) []B {
	out := []B{c.EBPF}
	if c.Netfilter == nil {
		return out
	}
	node, err := c.Netfilter(a)
	if err != nil {
		a.Log.Warn("using the defaults for what exists", log.Error(err))
	}
	for _, t := range node.All() {
		out = append(out, c.Tables(t))
	}
	return append(out, c.Others...)
}

// Recorded returns the backend that a record names; all of them if none has that
// name.
func (c Chooser[B]) Recorded(a *cniskel.Args, name string) []B {
	all := c.All(a)
	for _, b := range all {
		if b.Name() == name {
			return []B{b}
		}
	}
	return all
}

// Wanted returns the name of the backend that is asked for: by the network's
// configuration, else by the node's. It is Auto if neither names one.
func (c Chooser[B]) Wanted(a *cniskel.Args, configured string) (string, error) {
	if configured == "" && c.Netfilter != nil {
		node, err := c.Netfilter(a)
		switch {
		case err != nil:
			return "", err
		case c.Default != nil:
			configured = c.Default(node)
		default:
			configured = node.Default()
		}
	}
	if configured == "" {
		configured = Auto
	}
	return configured, nil
}

// TriesEBPF reports whether eBPF is tried first for a backend that is wanted.
func TriesEBPF(wanted string) bool { return wanted == Auto || wanted == EBPF }

// TriesEBPFBesideFirewalld is TriesEBPF for what firewalld has a say in. With Auto it takes precedence where it runs: it admits only what
// netfilter has translated, and rejects what goes from the pod's zone to another, even if eBPF admits it. only is a key of the
// network's configuration that is set and that no other backend has, so that eBPF is tried all the same; empty if there is none.
func (c Chooser[B]) TriesEBPFBesideFirewalld(ctx context.Context, a *cniskel.Args, wanted, only string) (bool, error) {
	if wanted != Auto || c.Netfilter == nil {
		return TriesEBPF(wanted), nil
	}
	node, err := c.Netfilter(a)
	switch {
	case err != nil:
		return false, err
	case !node.FirewalldRuns(ctx):
		return true, nil
	case only != "":
		a.Log.Warn("firewalld runs, and " + only + " needs eBPF: open the ports, and let the zones admit the pod, in firewalld")
		return true, nil
	}
	a.Log.Info("firewalld admits only what netfilter has translated: using netfilter")
	return false, nil
}

// Select returns the tables of that name; with Auto those that the node uses.
func (c Chooser[B]) Select(ctx context.Context, a *cniskel.Args, name string) (none B, err error) {
	if c.Netfilter == nil {
		return none, cnierr.Unsupported(c.Key, name, `only ebpf is built in; use "ebpf" or "auto"`)
	}
	node, err := c.Netfilter(a)
	if err != nil {
		return none, err
	}
	t, _, err := node.Select(ctx, name)
	if err != nil {
		return none, netfilter.CNIError(err, cnierr.CodeNoDatapath, "%sthe %s backend cannot run on this node", c.Prefix, name)
	}
	return c.Tables(t), nil
}

// Fallback returns the backend that takes over when eBPF cannot carry out an
// ADD. It returns why if eBPF was asked for by name, if there is no other
// backend, or if why is not in FallbackFor. instead chooses; nil: Select.
func (c Chooser[B]) Fallback(ctx context.Context, a *cniskel.Args, configured string, why error,
	instead func(ctx context.Context, a *cniskel.Args, name string) (B, error),
) (none B, err error) {
	reasons := c.FallbackFor
	if reasons == nil {
		reasons = []error{loader.ErrUnavailable}
	}
	if c.Netfilter == nil || !slices.ContainsFunc(reasons, func(r error) bool { return errors.Is(why, r) }) {
		return none, why
	}
	if wanted, err := c.Wanted(a, configured); err != nil || wanted == EBPF {
		return none, errors.Join(why, err)
	}
	a.Log.Info("eBPF cannot do this: using netfilter", log.NamedError(log.KeyReason, why))
	if instead == nil {
		instead = c.Select
	}
	b, err := instead(ctx, a, Auto)
	if err != nil {
		return none, cnierr.Wrap(cnierr.CodeNoDatapath, errors.Join(why, err), "%sno backend can run on this node", c.Prefix)
	}
	return b, nil
}

// Sweep lets each backend remove what no attachment explains.
func (c Chooser[B]) Sweep(ctx context.Context, a *cniskel.Args, network string, valid map[attachments.ID]bool) error {
	var errs []error
	for _, b := range c.All(a) {
		errs = append(errs, b.Sweep(ctx, a, network, valid))
	}
	return errors.Join(errs...)
}

// Status says why an ADD would fail now, with code 50. b is the backend that an
// ADD would take, err why there is none. fallback is asked when b cannot run.
func Status[B Base](ctx context.Context, a *cniskel.Args, b B, err error, fallback func(why error) (B, error)) error {
	if err == nil {
		err = b.Status(ctx, a)
	}
	if errors.Is(err, loader.ErrUnavailable) {
		_, err = fallback(err)
	}
	return cnierr.Unavailable(err)
}

// Prepare prepares a job by b, or by the backend that fallback returns when b
// cannot run. It returns the backend that prepared the job.
func Prepare[B Base, J any](b B, prepare func(B) (J, error), fallback func(why error) (B, error)) (B, J, error) {
	job, err := prepare(b)
	if err != nil {
		if b, err = fallback(err); err == nil {
			job, err = prepare(b)
		}
	}
	return b, job, err
}

// CheckUnrecorded is the CHECK of an attachment without a record, as for a pod
// that upstream's plugins attached: any backend that has everything will do. The
// error is that of chosen, the backend that a new ADD would take.
func CheckUnrecorded[B Base](chosen B, all []B, check func(B) error) error {
	differs := check(chosen)
	if differs == nil || slices.ContainsFunc(all, func(b B) bool { return b.Name() != chosen.Name() && check(b) == nil }) {
		return nil
	}
	return differs
}

// Unusable is an error of tables that were asked to remove what no record
// names. Those that cannot be looked at on this node are logged and passed over.
func Unusable(a *cniskel.Args, b Base, err error) error {
	if errors.Is(err, netfilter.ErrUnusable) {
		a.Log.Warn("tables that may hold something cannot be looked at", log.String(log.KeyBackend, b.Name()), log.Error(err))
		return nil
	}
	return err
}
