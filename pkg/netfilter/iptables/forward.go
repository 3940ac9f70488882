// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Forwards lists the FORWARD chains whose policy is to drop, and whether their
// table accepts packets with the mark.
func (t *Tables) Forwards(ctx context.Context, mark uint32) ([]netfilter.ForwardChain, error) {
	var out []netfilter.ForwardChain
	var errs []error
	for _, v6 := range []bool{false, true} {
		if !t.mayHave(v6, "filter", "FORWARD") {
			continue
		}
		have, err := t.read(ctx, v6, "filter")
		errs = append(errs, err)
		if have.policy["FORWARD"] == "DROP" {
			out = append(out, netfilter.ForwardChain{Tool: t.Name(), V4: !v6, V6: v6, Chain: "FORWARD", Accepts: have.acceptsMark(mark), Answers: have.acceptsAnswers()})
		}
	}
	return out, errors.Join(errs...)
}

// acceptsMark looks for the rule anywhere: which way leads to it is the
// administrator's business.
func (t table) acceptsMark(mark uint32) bool {
	want := fmt.Sprintf("--mark %#x/%#x", mark, mark)
	for _, rules := range t.chains {
		for _, r := range rules {
			if containsAll(r, []string{want, "-j ACCEPT"}) {
				return true
			}
		}
	}
	return false
}

// acceptsAnswers looks for a rule without another condition, in FORWARD and the
// chains that it leads to.
func (t table) acceptsAnswers() bool {
	for todo, seen := []string{"FORWARD"}, make(map[string]bool); len(todo) > 0; todo = todo[1:] {
		if seen[todo[0]] {
			continue
		}
		seen[todo[0]] = true
		for _, r := range t.chains[todo[0]] {
			if sameRule(r, netfilter.MatchAnswers+" -j ACCEPT") {
				return true
			}
			if w := words(r); len(w) > 1 && t.has(w[len(w)-1]) {
				todo = append(todo, w[len(w)-1])
			}
		}
	}
	return false
}

// commentAdmitted names the rule that lets the node's mark pass.
const commentAdmitted = "sluice: what the firewall plugin admits"

func admittedRule(mark uint32) string {
	return fmt.Sprintf("-m mark --mark %#x/%#x -m comment --comment %q -j ACCEPT", mark, mark, commentAdmitted)
}

// AcceptMark lets packets with the mark pass FORWARD: another kind of tables has
// admitted them, and what one accepts another may drop. On many nodes (Docker's,
// for one) that policy is DROP. It is one rule behind the admin chain, where
// upstream has two for each address. It does nothing where FORWARD does not exist.
func (t *Tables) AcceptMark(ctx context.Context, f netfilter.Firewall, mark uint32) error {
	var unusable []error
	for _, v6 := range netfilter.Families(f.Addrs) {
		if !t.mayHave(v6, "filter", "FORWARD") {
			continue
		}
		err := t.edit(ctx, v6, "filter", func(have table) (script, error) { return planAdmitted(f, mark, have), nil })
		if errors.Is(err, netfilter.ErrUnusable) {
			unusable = append(unusable, err) // the other family may do
		} else if err != nil {
			return err
		}
	}
	return errors.Join(unusable...)
}

// planAdmitted is planFirewall for all addresses at once.
func planAdmitted(f netfilter.Firewall, mark uint32, have table) script {
	s := planFirewall(netfilter.Firewall{AdminChain: f.AdminChain}, false, have)
	if !hasRule(have, chainForward, admittedRule(mark)) {
		s.add("-A %s %s", chainForward, admittedRule(mark))
	}
	return s
}

// CheckMark misses the rule of AcceptMark where the policy is to drop.
func (t *Tables) CheckMark(ctx context.Context, f netfilter.Firewall, mark uint32) error {
	var errs []error
	for _, v6 := range netfilter.Families(f.Addrs) {
		if !t.mayHave(v6, "filter", "FORWARD") {
			continue
		}
		have, err := t.read(ctx, v6, "filter")
		if err == nil && have.policy["FORWARD"] == "DROP" && !have.acceptsMark(mark) {
			errs = append(errs, fmt.Errorf("%w: FORWARD of %s drops what is forwarded, and nothing accepts the mark %#x", netfilter.ErrDiffers, t.Name(), mark))
		}
	}
	return errors.Join(errs...)
}
