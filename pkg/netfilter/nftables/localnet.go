// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
)

// The table of the guard in nftables.
const (
	guardTable = "sluice_localnet"
	setGuarded = "guarded"
)

func guardTables() []tableName { return []tableName{{"ip", guardTable, "prerouting"}} }

// EnableLocalnet puts the guard before the setting: see tool.SetLocalnet.
func (n *Tables) EnableLocalnet(ctx context.Context, ifname string) error {
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = n.edit(ctx, guardTables(), func(list) script {
		s := script{}
		s.table("ip", guardTable, "Sluice portmap plugin")
		s.add("add set ip %s %s { type ifname ; }", guardTable, setGuarded)
		s.only("ip", guardTable, "prerouting", "filter hook prerouting priority -150", "iifname @"+setGuarded+" ip daddr 127.0.0.0/8 drop")
		s.add("add element ip %s %s { %q }", guardTable, setGuarded, ifname)
		return s
	})
	if err != nil {
		return err
	}
	return tool.SetLocalnet(ifname)
}

// Guarded lists the elements of the set.
func (n *Tables) Guarded(ctx context.Context) ([]string, error) {
	path, err := n.env.LookPath("nft")
	if err != nil {
		return nil, nil //nolint:nilerr // then there is nothing of it
	}
	have, err := n.list(ctx, path, guardTables())
	return slices.Sorted(maps.Keys(have.set(setGuarded).comments())), err
}

// DisableLocalnet takes the setting back before the guard. The table goes with its
// last device.
func (n *Tables) DisableLocalnet(ctx context.Context, ifname string, used func() bool, known func(netip.Addr) bool) error {
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if used() {
		return nil
	}
	if left, err := n.thirdPartyPorts(ctx, known); left || err != nil {
		return err
	}
	if err := tool.ResetLocalnet(ifname); err != nil {
		return err
	}
	return n.edit(ctx, guardTables(), func(have list) script {
		s := script{}
		guarded := have.set(setGuarded).comments()
		switch _, there := guarded[ifname]; {
		case !there:
		case len(guarded) == 1:
			s.add("delete table ip %s", guardTable)
		default:
			s.add("delete element ip %s %s { %q }", guardTable, setGuarded, ifname)
		}
		return s
	})
}

// thirdPartyPorts reports whether a port leads to an address that is not known.
func (n *Tables) thirdPartyPorts(ctx context.Context, known func(netip.Addr) bool) (bool, error) {
	path, err := n.env.LookPath("nft")
	if err != nil {
		return false, nil //nolint:nilerr // then no plugin could have made one
	}
	have, err := n.list(ctx, path, portTables()[:1])
	for _, chain := range []string{chainHostPorts, chainHostIPPorts} {
		if slices.ContainsFunc(have.rules(chain), func(r rule) bool { return !known(r.pod()) }) {
			return true, err
		}
	}
	return false, err
}
