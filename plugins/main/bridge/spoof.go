// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// Names of the source MAC check in nftables. They are upstream's plugin's,
// so that either can remove what the other made.
const (
	spoofFamily = "bridge"
	spoofTable  = "nat"
	spoofHook   = "PREROUTING"

	nftTimeout = 55 * time.Second
)

// nftProgram is the nft of PATH.
type nftProgram struct {
	// lock is the file by which calls take turns; empty: they do not.
	lock string
}

func (nftProgram) Available() error {
	_, err := exec.LookPath("nft")
	return err
}

// Run also waits for an nft that goes on after its plugin was killed, since that has the lock as an open file: a DEL that passed it
// would leave the rules that it is about to write.
func (n nftProgram) Run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nft", args...)
	if n.lock != "" {
		turn, err := file.AcquireLock(ctx, n.lock)
		if err != nil {
			return nil, err
		}
		defer turn.Close()
		cmd.ExtraFiles = []*os.File{turn}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// nftFailed gives an error of nft its code: to have waited in vain is no failure of the kernel's.
func nftFailed(err error, what string) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return cnierr.Wrap(cnierr.CodeTryAgain, err, "%s", what)
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "%s", what)
}

// spoofNames are the names of one attachment's chains and rules.
type spoofNames struct{ iface, mac, comment string }

func spoofNamesOf(ref attachments.ID) spoofNames {
	id := ref.ContainerID + "-" + ref.IfName
	return spoofNames{iface: "cni-br-iface-" + id, mac: "cni-br-iface-" + id + "-mac", comment: "macspoofchk-" + id}
}

// object is a JSON object of libnftables-json(5).
type object = map[string]any

func chainObject(name string) object {
	return object{"family": spoofFamily, "table": spoofTable, "name": name}
}

func ruleObject(chain, comment string, expr ...object) object {
	return object{"family": spoofFamily, "table": spoofTable, "chain": chain, "comment": comment, "expr": expr}
}

func jump(chain string) object { return object{"jump": object{"target": chain}} }

func equals(left object, right string) object {
	return object{"match": object{"op": "==", "left": left, "right": right}}
}

// spoofRules is the transaction that drops what the pod sends with a source
// address that is not its own.
func spoofRules(n spoofNames, hostIfName, mac string) []object {
	base := chainObject(spoofHook)
	base["type"], base["hook"], base["prio"], base["policy"] = "filter", "prerouting", -300, "accept"
	return []object{
		{"add": object{"table": object{"family": spoofFamily, "name": spoofTable}}},
		{"add": object{"chain": base}},
		{"add": object{"chain": chainObject(n.iface)}},
		{"add": object{"chain": chainObject(n.mac)}},
		{"flush": object{"chain": chainObject(n.iface)}},
		{"flush": object{"chain": chainObject(n.mac)}},
		{"add": object{"rule": ruleObject(spoofHook, n.comment, equals(object{"meta": object{"key": "iifname"}}, hostIfName), jump(n.iface))}},
		{"add": object{"rule": ruleObject(n.iface, n.comment, jump(n.mac))}},
		{"add": object{"rule": ruleObject(n.mac, n.comment,
			equals(object{"payload": object{"protocol": "ether", "field": "saddr"}}, mac), object{"return": nil})}},
		{"add": object{"rule": ruleObject(n.mac, n.comment, object{"drop": nil})}},
	}
}

func (p *plugin) nftApply(ctx context.Context, commands []object) error {
	script, err := json.Marshal(object{"nftables": commands})
	if err != nil {
		return err
	}
	_, err = p.NFT.Run(ctx, script, "-j", "-f", "-")
	return err
}

// spoofCheck installs the check.
func (t *attach) spoofCheck(ctx context.Context) error {
	if !t.MACSpoofChk {
		return nil
	}
	if t.spoof != nil {
		return t.spoofCheckEBPF(ctx)
	}
	t.rb.Push("source MAC check", func(ctx context.Context) error { return t.p.removeSpoofCheck(ctx, t.args, t.ref) })
	rules := spoofRules(spoofNamesOf(t.ref), t.hostEnd.Name, t.podEnd.MAC.String())
	return nftFailed(t.p.nftApply(ctx, rules), "install the source MAC check")
}

// spoofState is what nft has of one attachment.
type spoofState struct {
	hook   []int             // handles of the rules in the base chain
	chains []string          // that exist, of the two
	rules  map[string]string // expressions by chain
}

// listSpoof reads the rules. The whole family is listed, since to list a table
// that does not exist is an error that only its text tells from others.
func (p *plugin) listSpoof(ctx context.Context, n spoofNames) (spoofState, error) {
	s := spoofState{rules: make(map[string]string)}
	out, err := p.NFT.Run(ctx, nil, "-j", "list", "ruleset", spoofFamily)
	if err != nil {
		return s, err
	}
	var list struct {
		Objects []struct {
			Chain *struct{ Table, Name string }
			Rule  *struct {
				Table, Chain, Comment string
				Handle                int
				Expr                  json.RawMessage
			}
		} `json:"nftables"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return s, fmt.Errorf("decode the output of nft: %w", err)
	}
	for _, o := range list.Objects {
		switch {
		case o.Chain != nil && o.Chain.Table == spoofTable && (o.Chain.Name == n.iface || o.Chain.Name == n.mac):
			s.chains = append(s.chains, o.Chain.Name)
		case o.Rule == nil || o.Rule.Table != spoofTable:
		case o.Rule.Chain == spoofHook && o.Rule.Comment == n.comment:
			s.hook = append(s.hook, o.Rule.Handle)
			s.rules[spoofHook] += string(o.Rule.Expr)
		case o.Rule.Chain == n.iface || o.Rule.Chain == n.mac:
			s.rules[o.Rule.Chain] += string(o.Rule.Expr)
		}
	}
	return s, nil
}

// removeSpoofCheck removes the rules in one transaction; the shared table and
// base chain stay. On a node without nft there is nothing that could be done.
func (p *plugin) removeSpoofCheck(ctx context.Context, a *cniskel.Args, ref attachments.ID) error {
	if err := p.NFT.Available(); err != nil {
		a.Log.Warn("source MAC check is not removed", log.Error(err))
		return nil
	}
	n := spoofNamesOf(ref)
	s, err := p.listSpoof(ctx, n)
	if err != nil {
		return nftFailed(err, "list the source MAC check")
	}
	var commands []object
	for _, handle := range s.hook {
		commands = append(commands, object{"delete": object{"rule": object{
			"family": spoofFamily, "table": spoofTable, "chain": spoofHook, "handle": handle,
		}}})
	}
	for _, verb := range []string{"flush", "delete"} { // the first chain refers to the second
		for _, chain := range s.chains {
			commands = append(commands, object{verb: object{"chain": chainObject(chain)}})
		}
	}
	if len(commands) == 0 {
		return nil
	}
	return nftFailed(p.nftApply(ctx, commands), "remove the source MAC check")
}
