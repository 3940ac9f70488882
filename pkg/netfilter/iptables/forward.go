// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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
			out = append(out, netfilter.ForwardChain{Tool: t.Name(), V4: !v6, V6: v6, Chain: "FORWARD", Accepts: have.acceptsMark(mark, (table).isAny), Answers: have.acceptsAnswers()})
		}
	}
	return out, errors.Join(errs...)
}

// MarksAnswers reports whether the rules of AdmitMarked about answers are there.
func (t *Tables) MarksAnswers(ctx context.Context, v6 bool, mark uint32) (bool, error) {
	if !t.mayHave(v6, "mangle", "FORWARD") {
		return false, nil
	}
	have, err := t.read(ctx, v6, "mangle")
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(answerRules(mark), func(r string) bool { return !hasRule(have, "FORWARD", r) }), nil
}

// AdmitMarked makes a FORWARD chain accept packets with the mark, and gives the
// mark to the answers to them. The rules that accept are the last ones. So what the
// administrator drops stays dropped, and only the policy of the chain is another.
// from are the devices that pods' packets come in by: what opens a connection has
// to come by one. A hostPort of an admitted pod stays closed to others, as with
// upstream, although its packets have the mark.
func (t *Tables) AdmitMarked(ctx context.Context, c netfilter.ForwardChain, from []string, mark uint32) error {
	ctx, unlock, err := t.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = t.edit(ctx, c.V6, "filter", func(have table) (script, error) {
		if have.acceptsMark(mark, (table).isForeign) {
			return script{}, nil
		}
		return planLast(have, commentAdmitted, mark, lastRules(from, mark)), nil
	})
	if c.Answers {
		return err
	}
	return errors.Join(err, t.edit(ctx, c.V6, "mangle", func(have table) (script, error) {
		return planLast(have, commentAnswers, mark, answerRules(mark)), nil
	}))
}

// lastRules accept answers, and what comes by the devices of pods: a bridge and its
// VLAN devices, or what begins with the name before a plus sign.
func lastRules(from []string, mark uint32) []string {
	rules := []string{netfilter.MatchAnswers + " " + admittedRule(mark)}
	accept := func(device string) {
		rules = append(rules, fmt.Sprintf("-i %s %s", quote(device), admittedRule(mark)))
	}
	for _, name := range from {
		accept(name)
		if vlans := name + ".+"; len(vlans) < unix.IFNAMSIZ && !strings.HasSuffix(name, "+") { // a longer name has no VLAN devices
			accept(vlans)
		}
	}
	return rules
}

// planLast appends the wanted rules to FORWARD. Others with the same comment and
// another mark are of an earlier configuration, and go.
func planLast(have table, note string, mark uint32, wanted []string) script {
	var s script
	for _, r := range have.chains["FORWARD"] {
		if comment(r) == note && !strings.Contains(r, fmt.Sprintf("%#x/%#x", mark, mark)) {
			s.add("-D FORWARD %s", r)
		}
	}
	for i, w := range wanted {
		if !hasRule(have, "FORWARD", w) && !slices.Contains(wanted[:i], w) {
			s.add("-A FORWARD %s", w)
		}
	}
	return s
}

// commentAnswers names the rules that give the mark to answers.
const commentAnswers = "sluice: answers to what the firewall plugin admits"

// answerRules keep the mark in the connection, and give it to each later packet of
// the connection. Where a third party masquerades, no program can mark an answer:
// it comes to an address of the node, and has the pod's only behind PREROUTING.
func answerRules(mark uint32) []string {
	return []string{
		fmt.Sprintf("-m mark --mark %#x/%#x -m comment --comment %q -j CONNMARK --set-xmark %#x/%#x", mark, mark, commentAnswers, mark, mark),
		fmt.Sprintf("%s -m connmark --mark %#x/%#x -m comment --comment %q -j MARK --set-xmark %#x/%#x", netfilter.MatchAnswers, mark, mark, commentAnswers, mark, mark),
	}
}

// acceptsMark looks for the rule anywhere among those that count: which way leads
// to it is the administrator's business.
func (t table) acceptsMark(mark uint32, counts func(t table, chain, rule string) bool) bool {
	want := fmt.Sprintf("--mark %#x/%#x", mark, mark)
	for chain, rules := range t.chains {
		for _, r := range rules {
			if containsAll(r, []string{want, "-j ACCEPT"}) && counts(t, chain, r) {
				return true
			}
		}
	}
	return false
}

func (table) isAny(string, string) bool { return true }

// isForeign reports that a rule is none of AdmitMarked's.
func (table) isForeign(chain, rule string) bool {
	return chain != "FORWARD" || comment(rule) != commentAdmitted
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
		if err == nil && have.policy["FORWARD"] == "DROP" && !have.acceptsMark(mark, (table).isAny) {
			errs = append(errs, fmt.Errorf("%w: FORWARD of %s drops what is forwarded, and nothing accepts the mark %#x", netfilter.ErrDiffers, t.Name(), mark))
		}
	}
	return errors.Join(errs...)
}
