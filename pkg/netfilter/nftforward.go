// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/log"
)

// commentAdmitted names the rule that lets the node's mark pass in the tables of
// iptables.
const commentAdmitted = "sluice: what the firewall plugin admits"

func admittedRule(mark uint32) string {
	return fmt.Sprintf("-m mark --mark %#x/%#x -m comment --comment %q -j ACCEPT", mark, mark, commentAdmitted)
}

// acceptInForward lets what nftables admits pass the FORWARD chains of iptables
// too: what one table accepts another may drop, and on many nodes (Docker's, for
// one) that policy is DROP. It is one rule behind the admin chain, where the
// reference has two for each address. Nothing is made where nobody has made the
// chain. Tables that cannot be written are the administrator's to care for.
func (n *NFTables) acceptInForward(ctx context.Context, f Firewall) error {
	if n.mark == 0 {
		return nil
	}
	for _, t := range []*IPTables{{n.env, VariantNFT}, {n.env, VariantLegacy}} {
		for _, v6 := range families(f.Addrs) {
			if !t.mayHave(v6, "filter", "FORWARD") {
				continue
			}
			err := t.edit(ctx, v6, "filter", func(have table) (script, error) { return planAdmitted(f, n.mark, have), nil })
			if errors.Is(err, ErrUnusable) {
				n.log.Warn("cannot let admitted pods pass FORWARD", log.String("backend", t.Name()), log.Error(err))
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// planAdmitted is planFirewall for all addresses at once.
func planAdmitted(f Firewall, mark uint32, have table) script {
	s := planFirewall(Firewall{AdminChain: f.AdminChain}, false, have)
	if !hasRule(have, chainForward, admittedRule(mark)) {
		s.add("-A %s %s", chainForward, admittedRule(mark))
	}
	return s
}

// checkForward misses the rule where the policy is to drop.
func (n *NFTables) checkForward(ctx context.Context, f Firewall) error {
	var errs []error
	for _, t := range []*IPTables{{n.env, VariantNFT}, {n.env, VariantLegacy}} {
		for _, v6 := range families(f.Addrs) {
			if n.mark == 0 || !t.mayHave(v6, "filter", "FORWARD") {
				continue
			}
			have, err := t.read(ctx, v6, "filter")
			if err == nil && have.policy["FORWARD"] == "DROP" && !have.acceptsMark(n.mark) {
				errs = append(errs, fmt.Errorf("%w: FORWARD of %s drops what is forwarded, and nothing accepts the mark %#x", ErrDiffers, t.Name(), n.mark))
			}
		}
	}
	return errors.Join(errs...)
}
