// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/terminal"
	"github.com/sluice-cni/sluice/loader"
)

// slowNode takes its time.
type slowNode struct{ *fakeNode }

func (n slowNode) Facts(context.Context) (*doctor.Facts, error) {
	time.Sleep(2500 * time.Millisecond)
	return nil, errors.New("the node is odd")
}

// A command that takes longer than a second says so on a terminal, in a line that goes before it prints. Elsewhere nothing of it is seen.
func TestProgress(t *testing.T) {
	t.Parallel()
	p := newPTY(t, 60, 10)
	n := slowNode{newFakeNode()}
	var out bytes.Buffer
	(&app{out: &out, err: p.user, node: n, ops: n}).run(t.Context(), []string{"doctor"})
	p.await(t, "examining the node ... 2 s", 0)
	p.await(t, "\r\x1b[Ksluice: the node is odd\r\n", 0)
	if s := p.seen(); strings.Count(s, "odd") != 1 || !strings.HasSuffix(s, "odd\r\n") || out.Len() > 0 {
		t.Errorf("stderr %q, stdout %q", s, &out)
	}
	var errs bytes.Buffer
	(&app{out: &out, err: &errs, node: n, ops: n}).run(t.Context(), []string{"doctor"})
	if errs.String() != "sluice: the node is odd\n" {
		t.Errorf("without a terminal: %q", &errs)
	}
	quick := newPTY(t, 60, 10)
	(&app{out: &out, err: quick.user, node: newFakeNode(), ops: newFakeNode()}).run(t.Context(), []string{"status"})
	time.Sleep(50 * time.Millisecond)
	if s := quick.seen(); s != "" {
		t.Errorf("a quick command: %q", s)
	}
}

// Each command that doing names exists: a name that was changed would lose its progress.
func TestProgressNames(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		have[strings.TrimPrefix(c.CommandPath(), "sluice ")] = true
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(&app{node: newFakeNode()}))
	for name := range doing {
		if !have[name] {
			t.Errorf("there is no command %q", name)
		}
	}
}

// Tables with long names fit a narrow terminal, and both ends of a name are seen.
func TestTablesFit(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"endpoints", "hostports", "drops", "status", "top --once --interval 100ms"} {
		n := newFakeNode()
		n.records[0].ContainerID = strings.Repeat("c", 20)
		long := n.records[0].ID
		long.ContainerID, long.Network = strings.Repeat("0123456789", 6), "network-with-a-long-name"
		n.records[0].ID = long
		n.dp.State.Endpoints = append([]loader.EndpointStatus{}, n.dp.State.Endpoints...)
		n.dp.State.Endpoints[0].Owner, n.dp.Ports[0].Owner = long.Owner(), long.Owner()
		out, errs, status := runTool(t, n, 72, strings.Fields(args)...)
		if status != 0 || errs != "" {
			t.Fatalf("%s: %d %s", args, status, errs)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 72 {
				t.Errorf("%s: %d columns: %s", args, n, line)
			}
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in    string
		width int
		want  string
	}{{"veth0123456789", 14, "veth0123456789"}, {"veth0123456789", 9, "veth…6789"}, {"äöüß", 3, "ä…ß"}, {"abc", 1, "…"}, {"abc", 0, ""}} {
		if got := terminal.Cut(tt.in, tt.width); got != tt.want || utf8.RuneCountInString(got) > max(tt.width, 0) {
			t.Errorf("%q to %d: %q, want %q", tt.in, tt.width, got, tt.want)
		}
	}
}

// Shells ask the tool itself for pods and reasons.
func TestCompletePods(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"trace ":            "node",
		"trace node ":       "3f1c9a7be0d2\tdbnet/eth0",
		"monitor --pod ":    "3f1c9a7be0d2",
		"monitor --reason ": "spoofed-ip",
		"top --sort ":       "connections",
		"nat flush --pod ":  "10.1.0.2\tdbnet/3f1c9a7be0d2/eth0",
		"top --container ":  "3f1c9a7be0d24455aabbccdd",
	} {
		words := strings.Split(line, " ")
		out, _, status := runTool(t, newFakeNode(), 0, append([]string{"__complete"}, words...)...)
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("%q: %d, %q; want %q", line, status, out, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out, _, status := runTool(t, newFakeNode(), 0, "completion", shell); status != 0 || !strings.Contains(out, "sluice") {
			t.Errorf("%s: %d", shell, status)
		}
	}
}
