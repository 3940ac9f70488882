// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// With route_localnet on, whoever is behind the device reaches what listens on
// 127.0.0.1 of the node (CVE-2020-8558). No packet with such a destination has
// any business there: replies are to the node's own address, until netfilter
// translates them back after this point.

// guardComment names the rule; upstream has none.
func guardComment(ifname string) string { return "sluice: no 127.0.0.0/8 from " + ifname }

func guardRule(ifname string) string {
	return fmt.Sprintf("-d 127.0.0.0/8 -i %s -m comment --comment %q -j DROP", ifname, guardComment(ifname))
}

// localnetKey is the sysctl that lets 127.0.0.0/8 pass a device.
func localnetKey(ifname string) string { return "net/ipv4/conf/" + ifname + "/route_localnet" }

// EnableLocalnet lets the node's own processes reach pods behind the device
// from 127.0.0.1, and nobody behind it reach 127.0.0.1 of the node.
func (t *IPTables) EnableLocalnet(ctx context.Context, ifname string) error {
	ctx, unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = t.edit(ctx, false, "mangle", func(have table) (script, error) {
		var s script
		if !hasRule(have, "PREROUTING", guardRule(ifname)) {
			s.add("-A PREROUTING %s", guardRule(ifname))
		}
		return s, nil
	})
	if err != nil {
		return err
	}
	return sysctl.Set(localnetKey(ifname), "1")
}

// DisableLocalnet takes back what EnableLocalnet did, unless used says so or a
// port leads to an address that known does not know, which may be behind the
// device: a pod of the upstream plugins. Both are called while no other plugin of
// ours can change anything. A device that is gone took the setting with it.
func (t *IPTables) DisableLocalnet(ctx context.Context, ifname string, used func() bool, known func(netip.Addr) bool) error {
	ctx, unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if used() {
		return nil
	}
	if left, err := t.strangersPorts(ctx, known); left || err != nil {
		return err
	}
	if err := resetLocalnet(ifname); err != nil || !t.mayHave(false, "mangle", "PREROUTING") {
		return err
	}
	return t.edit(ctx, false, "mangle", func(have table) (script, error) {
		var s script
		for _, r := range have.chains["PREROUTING"] {
			if sameRule(r, guardRule(ifname)) {
				s.add("-D PREROUTING %s", r)
			}
		}
		return s, nil
	})
}

// Guarded lists the devices that EnableLocalnet was called for.
func (t *IPTables) Guarded(ctx context.Context) ([]string, error) {
	if !t.mayHave(false, "mangle", "PREROUTING") {
		return nil, nil
	}
	have, err := t.read(ctx, false, "mangle")
	var out []string
	for _, r := range have.chains["PREROUTING"] {
		if name, ok := strings.CutPrefix(comment(r), guardComment("")); ok {
			out = append(out, name)
		}
	}
	return out, err
}

func resetLocalnet(ifname string) error {
	if err := sysctl.Set(localnetKey(ifname), "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// strangersPorts reports whether a port leads to an address that is not known.
func (t *IPTables) strangersPorts(ctx context.Context, known func(netip.Addr) bool) (bool, error) {
	if !t.mayHave(false, "nat", chainDNAT) {
		return false, nil
	}
	have, err := t.read(ctx, false, "nat")
	for _, trace := range natTraces(have) {
		leads := strings.HasPrefix(trace.chain, "CNI-DN-")
		if leads && (len(trace.Addrs) == 0 || slices.ContainsFunc(trace.Addrs, func(a netip.Addr) bool { return !known(a) })) {
			return true, err
		}
	}
	return false, err
}

// The table of the guard in nftables.
const (
	nftGuardTable = "sluice_localnet"
	setGuarded    = "guarded"
)

func nftGuardTables() []nftName { return []nftName{{"ip", nftGuardTable, "prerouting"}} }

// EnableLocalnet is that of IPTables.
func (n *NFTables) EnableLocalnet(ctx context.Context, ifname string) error {
	ctx, unlock, err := n.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = n.edit(ctx, nftGuardTables(), func(nftList) nftScript {
		s := nftScript{}
		s.table("ip", nftGuardTable, "Sluice portmap plugin")
		s.add("add set ip %s %s { type ifname ; }", nftGuardTable, setGuarded)
		s.only("ip", nftGuardTable, "prerouting", "filter hook prerouting priority -150", "iifname @"+setGuarded+" ip daddr 127.0.0.0/8 drop")
		s.add("add element ip %s %s { %q }", nftGuardTable, setGuarded, ifname)
		return s
	})
	if err != nil {
		return err
	}
	return sysctl.Set(localnetKey(ifname), "1")
}

// Guarded is that of IPTables.
func (n *NFTables) Guarded(ctx context.Context) ([]string, error) {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return nil, nil //nolint:nilerr // then there is nothing of it
	}
	have, err := n.list(ctx, path, nftGuardTables())
	return slices.Sorted(maps.Keys(have.set(setGuarded).comments())), err
}

// DisableLocalnet is that of IPTables. The table goes with its last device.
func (n *NFTables) DisableLocalnet(ctx context.Context, ifname string, used func() bool, known func(netip.Addr) bool) error {
	ctx, unlock, err := n.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if used() {
		return nil
	}
	if left, err := n.strangersPorts(ctx, known); left || err != nil {
		return err
	}
	if err := resetLocalnet(ifname); err != nil {
		return err
	}
	return n.edit(ctx, nftGuardTables(), func(have nftList) nftScript {
		s := nftScript{}
		guarded := have.set(setGuarded).comments()
		switch _, there := guarded[ifname]; {
		case !there:
		case len(guarded) == 1:
			s.add("delete table ip %s", nftGuardTable)
		default:
			s.add("delete element ip %s %s { %q }", nftGuardTable, setGuarded, ifname)
		}
		return s
	})
}

// strangersPorts is that of IPTables.
func (n *NFTables) strangersPorts(ctx context.Context, known func(netip.Addr) bool) (bool, error) {
	path, err := n.run.LookPath("nft")
	if err != nil {
		return false, nil //nolint:nilerr // then there is nobody who could have
	}
	have, err := n.list(ctx, path, nftPortTables()[:1])
	for _, chain := range []string{nftHostPorts, nftHostIPPorts} {
		if slices.ContainsFunc(have.rules(chain), func(r nftRule) bool { return !known(r.pod()) }) {
			return true, err
		}
	}
	return false, err
}
