// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

func (n *fakeNode) Facts(context.Context) (*doctor.Facts, error) {
	if n.facts == nil {
		return nil, errors.New("config.json: not JSON")
	}
	return n.facts, nil
}

func (n *fakeNode) Leftovers(context.Context) (orphans.Report, error) { return n.report, n.blind }

func (n *fakeNode) Cleanup(_ context.Context, items []orphans.Item) error {
	n.cleaned = items
	if n.cleanupErr == nil {
		n.report.Items = slices.DeleteFunc(slices.Clone(n.report.Items), func(i orphans.Item) bool { return i.Removable && i.What != n.stays })
	}
	return n.cleanupErr
}

func (n *fakeNode) InForeignMounts() bool { return n.away }

var _ nodeOps = (*fakeNode)(nil)

func someLeftovers() orphans.Report {
	return orphans.Report{
		Items: []orphans.Item{
			{Kind: orphans.Netfilter, What: "net0/4711: chain CNI-DN-c189d8b6a7b4d184c9f70 of the table nat (iptables-nft, IPv4)", Why: "the network namespace /run/netns/a of net0/4711/eth0 is gone (record)", Removable: true},
			{Kind: orphans.IFB, What: "device bwpc189d8b6a7b4", Why: "no filter sends packets to it, but net0/77/eth0 may be alive (/var/lib/cni/results/net0-77-eth0)"},
		},
		Known: "2 records in /run/sluice/attachments",
	}
}

// sickNode has one finding of each level and more.
func sickNode() *fakeNode {
	n := newFakeNode()
	n.report = someLeftovers()
	n.facts = &doctor.Facts{
		Config: nodeconf.Default(), Cgroup: "/sys/fs/cgroup", Status: n.dp.State, Probes: n.dp.State.Probes, Leftovers: n.report,
		Links: map[int]string{2: "eth0"}, Sysctls: map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "0"},
		Hooks:    []loader.HookPrograms{{Ifindex: 2, Hook: "ingress", Programs: []loader.HookedProgram{{Name: "cil_from_netdev", ID: 90, How: "tcx"}, {Name: "sl_from_uplink", ID: 31, How: "tcx", Ours: true}}}},
		Forwards: []netfilter.ForwardChain{{Tool: "iptables-nft", V4: true, Chain: "FORWARD"}},
	}
	return n
}

func TestDoctor(t *testing.T) {
	n := sickNode()
	out, errs, status := runTool(t, n, 0, "doctor")
	if status != exitProblems || errs != "" {
		t.Errorf("exit status %d, %q", status, errs)
	}
	golden(t, "doctor.txt", out)
	out, _, _ = runTool(t, n, 0, "doctor", "-w")
	golden(t, "doctor-wide.txt", out)
	out, _, _ = runTool(t, n, 0, "doctor", "-o", "json")
	golden(t, "doctor.json", out)
	wantSnakeCase(t, out)
}

// The exit status is that of the worst finding.
func TestDoctorStatus(t *testing.T) {
	n := &fakeNode{facts: &doctor.Facts{Config: nodeconf.Default(), Cgroup: "/sys/fs/cgroup"}}
	tests := []struct {
		name string
		edit func()
		want int
	}{
		{"nothing", func() {}, 0},
		{"warning", func() { n.facts.Leftovers = someLeftovers() }, exitWarnings},
		{"problem", func() {
			n.facts.Config.Backend = nodeconf.BackendEBPF
			n.facts.Probes = []loader.Probe{{Name: "redirect_peer", Answer: loader.AnswerNo, Required: true}}
		}, exitProblems},
		{"the doctor", func() { n.facts = nil }, 1},
	}
	for _, tt := range tests {
		tt.edit()
		if out, errs, status := runTool(t, n, 0, "doctor"); status != tt.want {
			t.Errorf("%s: exit status %d, want %d: %s%s", tt.name, status, tt.want, out, errs)
		}
	}
}

func TestCleanup(t *testing.T) {
	n := sickNode()
	out, errs, status := runTool(t, n, 0, "cleanup")
	if status != 0 || errs != "" || n.cleaned != nil {
		t.Errorf("exit status %d, %q, removed %v", status, errs, n.cleaned)
	}
	golden(t, "cleanup.txt", out)
	out, _, status = runTool(t, n, 0, "cleanup", "--yes")
	if status != 0 || len(n.cleaned) != 2 {
		t.Errorf("exit status %d, removed %v", status, n.cleaned)
	}
	golden(t, "cleanup-yes.txt", out)
	out, _, _ = runTool(t, sickNode(), 0, "cleanup", "-o", "json")
	golden(t, "cleanup.json", out)
	wantSnakeCase(t, out)
}

// Nothing is removed by a process that may not see what is alive, unless it is
// told to.
func TestCleanupBlind(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*fakeNode)
		want string
	}{
		{"other mounts", func(n *fakeNode) { n.away = true }, "other mounts"},
		{"unreadable cache", func(n *fakeNode) { n.blind = errors.New("results/x: names no container") }, "names no container"},
	} {
		n := sickNode()
		tt.edit(n)
		out, errs, status := runTool(t, n, 0, "cleanup", "--yes")
		if status != 1 || out != "" || !strings.Contains(errs, tt.want) || n.cleaned != nil {
			t.Errorf("%s: exit status %d, %q, removed %v", tt.name, status, errs, n.cleaned)
		}
		n.cleaned = nil
		if runTool(t, n, 0, "cleanup", "--yes", "--force"); len(n.cleaned) != 2 {
			t.Errorf("%s: --force removed %v", tt.name, n.cleaned)
		}
	}
}

// What was to be removed and is there still is not said to be gone: it came to life, or the removal failed.
func TestCleanupIncomplete(t *testing.T) {
	for name, edit := range map[string]func(*fakeNode){
		"it is alive again": func(n *fakeNode) { n.stays = n.report.Items[0].What },
		"a failure":         func(n *fakeNode) { n.cleanupErr = errors.New("nft: exit status 1") },
	} {
		n := sickNode()
		edit(n)
		out, errs, status := runTool(t, n, 0, "cleanup", "--yes")
		if !strings.HasPrefix(out, "stays ") || !strings.Contains(out, "Removed 0 leftovers") {
			t.Errorf("%s:\n%s", name, out)
		}
		if n.cleanupErr != nil && (status != 1 || !strings.Contains(errs, "nft: exit status 1")) {
			t.Errorf("%s: %d, %s", name, status, errs)
		}
	}
}

// A finding is one line, also where what went wrong was several things.
func TestDoctorOneLineEach(t *testing.T) {
	n := sickNode()
	n.facts.Blind = []error{errors.Join(errors.New("iptables: EPERM"), errors.New("nft: EPERM"))}
	out, _, _ := runTool(t, n, 0, "doctor")
	if !strings.Contains(out, "iptables: EPERM; nft: EPERM -> ") {
		t.Errorf("%s", out)
	}
}
