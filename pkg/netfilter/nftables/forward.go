// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/iptables"
)

// Forwards lists the chains of the FORWARD hook whose policy is to drop, and
// whether their table accepts packets with the mark. Tables of iptables are left
// to iptables.
func (n *Tables) Forwards(ctx context.Context, mark uint32) ([]netfilter.ForwardChain, error) {
	path, err := n.env.LookPath("nft")
	if err != nil {
		return nil, nil //nolint:nilerr // a node that uses nftables has it
	}
	out, err := n.env.Run(ctx, "", path, "-j", "list", "chains")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
	}
	var all struct {
		Objects []struct {
			Chain *struct{ Family, Table, Name, Hook, Policy string }
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("%w: decode the output of nft: %w", netfilter.ErrUnusable, err)
	}
	var found []netfilter.ForwardChain
	for _, o := range all.Objects {
		c := o.Chain
		if c == nil || c.Hook != "forward" || c.Policy != "drop" || c.Table == "filter" && c.Name == "FORWARD" && c.Family != "inet" {
			continue
		}
		v4, v6 := c.Family == "ip" || c.Family == "inet", c.Family == "ip6" || c.Family == "inet"
		if !v4 && !v6 {
			continue
		}
		rules, err := n.env.Run(ctx, "", path, "-j", "list", "table", c.Family, c.Table)
		if err != nil {
			return found, fmt.Errorf("%w: %w", netfilter.ErrUnusable, err)
		}
		found = append(found, netfilter.ForwardChain{
			Tool: n.Name(), V4: v4, V6: v6, Table: c.Family + " " + c.Table, Chain: c.Name, Accepts: acceptsMark(rules, mark), Answers: acceptsAnswers(rules, c.Name),
		})
	}
	return found, nil
}

// answersTable gives the mark to answers, whichever chain is to accept it.
const answersTable = "sluice_answers"

func answersTables() []tableName { return []tableName{{"inet", answersTable, "forward"}} }

// MarksAnswers reports whether the table of AdmitMarked is there.
func (n *Tables) MarksAnswers(ctx context.Context, _ bool, mark uint32) (bool, error) {
	path, err := n.env.LookPath("nft")
	if err != nil {
		return false, nil //nolint:nilerr // then no plugin made it
	}
	have, err := n.list(ctx, path, answersTables())
	rules := have.rules("forward")
	return len(rules) == len(answerRules(mark)) && strings.Contains(string(rules[0].Expr), fmt.Sprint(mark)), err
}

// AdmitMarked gives the mark to the answers to packets that have it. The chain that
// drops is a third party's, and so the rule that accepts the mark is too.
func (n *Tables) AdmitMarked(ctx context.Context, c netfilter.ForwardChain, _ []string, mark uint32) error {
	if c.Answers {
		return nil
	}
	ctx, unlock, err := n.env.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.edit(ctx, answersTables(), func(list) script {
		s := script{}
		s.table("inet", answersTable, "Sluice firewall plugin")
		s.only("inet", answersTable, "forward", "filter hook forward priority -150", answerRules(mark)...)
		return s
	})
}

// answerRules keep the mark in the connection, and give it to each later packet of
// the connection. Package iptables says why.
func answerRules(mark uint32) []string {
	return []string{
		fmt.Sprintf("meta mark and %#x == %#x ct mark set ct mark or %#x", mark, mark, mark),
		fmt.Sprintf("ct state established,related ct mark and %#x == %#x meta mark set meta mark or %#x", mark, mark, mark),
	}
}

// acceptsMark looks for a rule that compares the mark with a value that has
// the bits, and accepts.
func acceptsMark(listing string, mark uint32) bool {
	var l list
	if json.Unmarshal([]byte(listing), &l) != nil || l.compact() != nil {
		return false
	}
	for _, o := range l.Objects {
		if o.Rule == nil {
			continue
		}
		e := string(o.Rule.Expr)
		if strings.Contains(e, `"key":"mark"`) && strings.Contains(e, `"accept"`) && strings.Contains(e, fmt.Sprint(mark)) {
			return true
		}
	}
	return false
}

// acceptsAnswers looks for a rule without another condition, in the chain and those
// that it leads to.
func acceptsAnswers(listing, chain string) bool {
	var l list
	if json.Unmarshal([]byte(listing), &l) != nil || l.compact() != nil {
		return false
	}
	for todo, seen := []string{chain}, make(map[string]bool); len(todo) > 0; todo = todo[1:] {
		if seen[todo[0]] {
			continue
		}
		seen[todo[0]] = true
		for _, r := range l.rules(todo[0]) {
			e := string(r.Expr)
			if strings.Contains(e, `"key":"state"`) && r.mentions("established") && strings.Contains(e, `"accept"`) && strings.Count(e, `"match"`) == 1 {
				return true
			}
			if to := r.jump(); to != "" {
				todo = append(todo, to)
			}
		}
	}
	return false
}

// acceptInForward lets what this table admits pass the FORWARD chains of iptables
// too. Tables that cannot be written are the administrator's to care for.
func (n *Tables) acceptInForward(ctx context.Context, f netfilter.Firewall) error {
	if n.env.Mark == 0 {
		return nil
	}
	for _, t := range n.iptables() {
		err := t.AcceptMark(ctx, f, n.env.Mark)
		if errors.Is(err, netfilter.ErrUnusable) {
			n.env.Log.Warn("cannot let admitted pods pass FORWARD", log.String("backend", t.Name()), log.Error(err))
		} else if err != nil {
			return err
		}
	}
	return nil
}

// checkForward misses a rule of acceptInForward where the policy is to drop.
func (n *Tables) checkForward(ctx context.Context, f netfilter.Firewall) error {
	if n.env.Mark == 0 {
		return nil
	}
	var errs []error
	for _, t := range n.iptables() {
		errs = append(errs, t.CheckMark(ctx, f, n.env.Mark))
	}
	return errors.Join(errs...)
}

// iptables are the tables whose FORWARD sees the same packets.
func (n *Tables) iptables() []*iptables.Tables {
	return []*iptables.Tables{iptables.New(n.env, iptables.VariantNFT), iptables.New(n.env, iptables.VariantLegacy)}
}
