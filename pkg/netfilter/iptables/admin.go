// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// AdminChain reports whether the table filter has the administrator's chain, and
// whether that has a rule.
func (t *Tables) AdminChain(ctx context.Context, v6 bool, name string) (there, ruled bool, err error) {
	if !t.mayHave(v6, "filter", name) {
		return false, false, nil
	}
	have, err := t.read(ctx, v6, "filter")
	return have.has(name), len(have.chains[name]) > 0, err
}

// CallAdmin has FORWARD call the administrator's chain before all else, by way of
// CNI-FORWARD as AddFirewall does. It makes chains that are missing, and admits no
// address.
func (t *Tables) CallAdmin(ctx context.Context, v6 bool, name string) error {
	ctx, unlock, err := t.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return t.edit(ctx, v6, "filter", func(have table) (script, error) {
		return planFirewall(netfilter.Firewall{AdminChain: name}, v6, have), nil
	})
}

// CheckAdmin misses what CallAdmin made. It changes nothing.
func (t *Tables) CheckAdmin(ctx context.Context, v6 bool, name string) error {
	have, err := t.read(ctx, v6, "filter")
	if err != nil {
		return err
	}
	for _, j := range adminJumps(name) {
		if len(have.find(j[0], "-j "+j[1])) == 0 {
			return fmt.Errorf("%w: nothing in %s leads to %s", netfilter.ErrDiffers, j[0], j[1])
		}
	}
	return nil
}

// adminJumps lead from FORWARD to the administrator's chain.
func adminJumps(name string) [][2]string {
	return [][2]string{{"FORWARD", chainForward}, {chainForward, name}}
}
