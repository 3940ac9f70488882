// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
)

// countingNode counts how often its records are read.
type countingNode struct {
	*fakeNode
	asked int
}

func (n *countingNode) Records() ([]*attachments.Record, error) {
	n.asked++
	return n.fakeNode.Records()
}

// The records are not read for each packet of a pod that has none, nor is it said each time that they cannot be.
func TestMonitorFloodWithoutRecord(t *testing.T) {
	const drops = 2000
	n := &countingNode{fakeNode: newFakeNode()}
	n.dp.Dropped = slices.Repeat(fakeEvents()[2:3], drops)
	n.readErr = errors.New("permission denied")
	var out, errs bytes.Buffer
	if status := (&app{out: &out, err: &errs, node: n}).run(t.Context(), []string{"monitor"}); status != 0 {
		t.Fatal(errs.String())
	}
	if lines := strings.Count(out.String(), "\n"); lines != drops {
		t.Errorf("%d lines of %d", lines, drops)
	}
	if said := strings.Count(errs.String(), "permission denied"); n.asked > 10 || said > 10 || n.asked < 2 {
		t.Errorf("the records were read %d times, and %d times said to be unreadable", n.asked, said)
	}
}

// Where the record of the decision is gone the tool does not make up what is in force.
func TestUndecided(t *testing.T) {
	undecided := func() *fakeNode {
		n := newFakeNode()
		n.dp.State.Reason, n.dp.State.Config, n.dp.State.Attach = "the record of the decision is gone", loader.ConfigStatus{}, loader.AttachModes{}
		return n
	}
	out, _, status := runTool(t, undecided(), 0, "status")
	for _, untrue := range []string{"anti-spoofing off", "by ,", "SNAT ports  \n"} {
		if status != 0 || strings.Contains(out, untrue) {
			t.Errorf("status: %d, %q in\n%s", status, untrue, out)
		}
	}
	if !strings.Contains(out, "settings    not known") {
		t.Errorf("status:\n%s", out)
	}
	out, _, _ = runTool(t, undecided(), 0, "status", "-o", "json")
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil || v["config"] != nil {
		t.Errorf("config: %v, %v", v["config"], err)
	}
	out, _, status = runTool(t, undecided(), 0, "nat", "pools")
	if status != 0 || strings.Contains(out, "0 toward one destination") || !strings.Contains(out, "not known") {
		t.Errorf("masquerade: %d\n%s", status, out)
	}
	if out, _, _ := runTool(t, undecided(), 0, "nat", "pools", "-o", "json"); strings.Contains(out, `"ports": null`) || strings.Contains(out, `"free": 0`) {
		t.Errorf("masquerade:\n%s", out)
	}
}

// A list is a list in JSON, an empty one too: a device inside a pod has no addresses in the maps.
func TestEndpointWithoutAddresses(t *testing.T) {
	n := newFakeNode()
	n.dp.State.Endpoints = []loader.EndpointStatus{{Owner: webRef.Owner(), Features: []string{"admit"}, Netns: "/run/netns/web", Ifindex: 2}}
	out, _, status := runTool(t, n, 0, "endpoints", "-o", "json")
	if status != 0 || strings.Contains(out, "null") {
		t.Errorf("%d: %s", status, out)
	}
}

// The device of a pod that has gone has no name: status says what endpoints says.
func TestStatusOfGoneDevice(t *testing.T) {
	n := newFakeNode()
	n.dp.State.Devices[2].Name = ""
	out, _, _ := runTool(t, n, 0, "status")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "MISSING") && !strings.HasPrefix(line, "gone ") {
			t.Errorf("%q", line)
		}
	}
}

// A pod can call its devices what it likes, and some come back to the node: no name reaches the terminal as a command.
func TestNamesAreNoCommands(t *testing.T) {
	const evil = "\x1b]0;x\x07\u009b2J"
	for _, args := range []string{"status", "status -w", "endpoints", "hostports -w", "conntrack list", "monitor", "drops", "doctor", "cleanup", "deny list", "bandwidth"} {
		for _, coloured := range []colours{false, true} {
			n := sickNode()
			n.dp.State.Devices[0].Name, n.dp.State.Devices[1].Name, n.dp.State.Skipped[0].Name = evil, evil, evil
			n.dp.State.Devices[1].Programs[0].OK = false
			n.dp.State.Endpoints[0].HostIfName = evil
			n.dp.Ports[0].Conditions.InDevice = evil
			n.dp.Dropped[0].Device, n.dp.DropCounts[0].Device = evil, evil
			n.facts.Links[2] = evil
			n.report.Items[1].What = evil
			n.records[0].ID.IfName, n.records[1].ID.IfName = evil, evil
			var out, errs bytes.Buffer
			a := &app{out: &out, err: &errs, node: n, ops: n, colours: coloured}
			a.run(t.Context(), strings.Fields(args))
			text := out.String() + errs.String()
			for _, c := range []string{"1", "2", "31", "32", "33", "0"} {
				text = strings.ReplaceAll(text, "\x1b["+c+"m", "") // ours
			}
			if i := strings.IndexAny(text, "\x1b\x07\u009b"); i >= 0 {
				t.Errorf("%s (colours %t): %q", args, coloured, text[i:min(len(text), i+20)])
			}
			if !strings.Contains(args, "bandwidth") && args != "conntrack list" && args != "deny list" && !strings.Contains(text, `\x1b]0;x`) {
				t.Errorf("%s: the name is not there:\n%s", args, text)
			}
		}
	}
	n := newFakeNode()
	n.openErr = errors.New("device " + evil)
	if _, errs, _ := runTool(t, n, 0, "endpoints"); strings.ContainsAny(errs, "\x1b\x07") {
		t.Errorf("%q", errs)
	}
}

// A filter that nothing matches does not make the node empty.
func TestNothingMatches(t *testing.T) {
	for args, untrue := range map[string]string{
		"endpoints --network nowhere": "serves no pod", "hostports --network nowhere": "No port is published",
		"bandwidth --network nowhere": "No pod is limited", "drops --reason denied": "No packet was dropped.",
	} {
		if out, errs, status := runTool(t, newFakeNode(), 0, strings.Fields(args)...); status != 0 || strings.Contains(out, untrue) || !strings.HasPrefix(out, "No ") {
			t.Errorf("%s: %d, %q, %q", args, status, out, errs)
		}
	}
}

// A value that can select nothing, or that would be passed over, is refused by name.
func TestUselessValues(t *testing.T) {
	for args, want := range map[string]string{
		"flows --limit -1": "limit", "monitor --limit -1": "limit", "drops --watch -2s": "watch", "drops --watch 0s": "watch",
		"flows --pod fe80::1%eth0": "--pod", "flows --remote fe80::1%eth0": "--remote", "monitor --pod fe80::1%eth0": "--pod",
	} {
		if out, errs, status := runTool(t, newFakeNode(), 0, strings.Fields(args)...); status != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %q, %q", args, status, out, errs)
		}
	}
}

// The denylist is no pod's: it goes with the maps only when that is wanted.
func TestUnloadKeepsDenyList(t *testing.T) {
	n := newFakeNode()
	n.records, n.dp.State.Endpoints = nil, nil
	n.dp.Denied = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	if _, errs, status := runTool(t, n, 0, "unload"); status != 1 || n.dp.Unloaded != 0 || !strings.Contains(errs, "denylist") {
		t.Errorf("%d, unloaded %d times, %q", status, n.dp.Unloaded, errs)
	}
	if _, errs, status := runTool(t, n, 0, "unload", "--force"); status != 0 || n.dp.Unloaded != 1 {
		t.Errorf("%d, unloaded %d times, %q", status, n.dp.Unloaded, errs)
	}
}
