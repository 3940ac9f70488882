// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/iptables"
)

// CallAdmin has FORWARD of iptables call the administrator's chain first, in the
// families of f's addresses. Backends need it whose own programs admit pods. It
// calls the chain in each variant that has it, so that its rules hold wherever they
// are. Where no variant has it, it makes the chain in the variant that the node uses.
func (n *Node) CallAdmin(ctx context.Context, f netfilter.Firewall) error {
	return n.eachAdmin(ctx, f, func(t *iptables.Tables, v6 bool) error { return t.CallAdmin(ctx, v6, f.AdminChainName()) })
}

// CheckAdmin misses what CallAdmin made. It changes nothing.
func (n *Node) CheckAdmin(ctx context.Context, f netfilter.Firewall) error {
	return n.eachAdmin(ctx, f, func(t *iptables.Tables, v6 bool) error { return t.CheckAdmin(ctx, v6, f.AdminChainName()) })
}

func (n *Node) eachAdmin(ctx context.Context, f netfilter.Firewall, do func(t *iptables.Tables, v6 bool) error) error {
	for _, v6 := range netfilter.Families(f.Addrs) {
		of, err := n.adminTables(ctx, v6, f.AdminChainName(), false)
		if len(of) == 0 {
			t, _, serr := n.Select(ctx, netfilter.NameIPTables)
			if serr != nil {
				return errors.Join(serr, err)
			}
			of = []*iptables.Tables{t.(*iptables.Tables)} // it is one by its name
		}
		for _, t := range of {
			if err := do(t, v6); err != nil {
				return fmt.Errorf("%s: %w", t.Name(), err)
			}
		}
	}
	return nil
}

// adminTables are the variants that have the chain, with ruled only those where it has
// a rule. The error names what could not be read.
func (n *Node) adminTables(ctx context.Context, v6 bool, name string, ruled bool) (out []*iptables.Tables, _ error) {
	var errs []error
	for _, variant := range []string{iptables.VariantNFT, iptables.VariantLegacy} {
		t := iptables.New(n.env, variant)
		there, rules, err := t.AdminChain(ctx, v6, name)
		if there && (rules || !ruled) {
			out = append(out, t)
		}
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// callDefaultAdmin is CallAdmin for CNI-ADMIN where an administrator has made it and
// put a rule into it: upstream's firewall calls it without being told. It is for
// verbs, at most once in lookEvery.
func (n *Node) callDefaultAdmin(ctx context.Context) {
	if !n.due("admin-look", lookEvery) {
		return
	}
	for _, v6 := range []bool{false, true} {
		of, err := n.adminTables(ctx, v6, netfilter.DefaultAdminChain, true)
		for _, t := range of {
			err = errors.Join(err, t.CallAdmin(ctx, v6, netfilter.DefaultAdminChain))
		}
		if errors.Is(err, netfilter.ErrBusy) {
			n.forget("admin-look")
		}
		if len(of) > 0 && err != nil {
			n.env.Log.Warn("FORWARD may not call the administrator's chain", log.String("chain", netfilter.DefaultAdminChain), log.Error(err))
		}
	}
}
