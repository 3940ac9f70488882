// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
)

// guardComment names the rule; upstream has none.
func guardComment(ifname string) string { return "sluice: no 127.0.0.0/8 from " + ifname }

func guardRule(ifname string) string {
	return fmt.Sprintf("-d 127.0.0.0/8 -i %s -m comment --comment %q -j DROP", ifname, guardComment(ifname))
}

// EnableLocalnet puts the guard before the setting: see tool.SetLocalnet.
func (t *Tables) EnableLocalnet(ctx context.Context, ifname string) error {
	ctx, unlock, err := t.env.Lock(ctx)
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
	return tool.SetLocalnet(ifname)
}

// DisableLocalnet takes the setting back before the guard.
func (t *Tables) DisableLocalnet(ctx context.Context, ifname string, used func() bool, known func(netip.Addr) bool) error {
	ctx, unlock, err := t.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if used() {
		return nil
	}
	if left, err := t.thirdPartyPorts(ctx, known); left || err != nil {
		return err
	}
	if err := tool.ResetLocalnet(ifname); err != nil || !t.mayHave(false, "mangle", "PREROUTING") {
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
func (t *Tables) Guarded(ctx context.Context) ([]string, error) {
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

// thirdPartyPorts reports whether a port leads to an address that is not known.
func (t *Tables) thirdPartyPorts(ctx context.Context, known func(netip.Addr) bool) (bool, error) {
	if !t.mayHave(false, "nat", chainDNAT) {
		return false, nil
	}
	have, err := t.read(ctx, false, "nat")
	for _, f := range natSets(have) {
		leads := strings.HasPrefix(f.seen.chain, "CNI-DN-")
		if leads && (len(f.Addrs) == 0 || slices.ContainsFunc(f.Addrs, func(a netip.Addr) bool { return !known(a) })) {
			return true, err
		}
	}
	return false, err
}
