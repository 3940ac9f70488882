// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// Each filter of "observe" alone, and two together.
func TestObserveFilters(t *testing.T) {
	for args, want := range map[string]int{
		"":                                        3,
		"--all":                                   3,
		"--last 1":                                1,
		"--pod 10.1.0.2":                          1,
		"--pod fd00:1::2,10.1.0.3":                2,
		"--pod 3f1c":                              2,
		"--pod default/web":                       0,
		"--ip 198.51.100.0/24":                    2,
		"--ip ::ffff:192.0.2.1":                   2,
		"--ip 2001:db8:ffff::7":                   1,
		"--port 8080":                             1,
		"--port 443 --port 53":                    2,
		"--protocol tcp":                          2,
		"--protocol TCP,17":                       2,
		"--verdict forwarded":                     3,
		"--verdict dropped":                       0,
		"--drop-reason spoofed-ip":                0,
		"--protocol tcp --ip 198.51.100.7":        1,
		"--sample 1000000 --max-rate 1 --all":     3, // what was asked for is not sampled
		"--protocol udp --last 5 --output json":   1,
		"--protocol udp --last 5 --output jsonpb": 1,
	} {
		if !strings.Contains(args, "--output") {
			args += " -o json"
		}
		out, errs, status := runTool(t, newFakeNode(), 0, append([]string{"observe"}, strings.Fields(args)...)...)
		if status != 0 {
			t.Fatalf("%q: %s", args, errs)
		}
		if got := strings.Count(out, "\n"); got != want {
			t.Errorf("%q: %d lines, want %d:\n%s", args, got, want, out)
		}
		for line := range strings.Lines(out) {
			var v map[string]any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Errorf("%q: %v in %q", args, err, line)
			}
			if strings.Contains(args, "json") && !strings.Contains(args, "jsonpb") {
				wantSnakeCase(t, line)
			}
		}
	}
}

// The line for people has both ends, the translation, the pod, and how the connection is.
func TestObserveText(t *testing.T) {
	out, _, _ := runTool(t, newFakeNode(), 0, "observe", "--port", "8080")
	want := "  existing  forwarded  tcp 198.51.100.7:51234 > 10.1.0.2:80 as 192.0.2.1:8080, pod dbnet/3f1c9a7be0d2/eth0: established, fast, 16k packets, 22M bytes\n"
	if _, got, ok := strings.Cut(out, "."); !ok || got[3:] != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// With --follow come the packets that are dropped, and how many there were beside them, until the command is interrupted.
func TestObserveFollow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		a := &app{out: w, err: w, node: newFakeNode()}
		done <- a.run(ctx, []string{"observe", "--follow", "-o", "json"})
		_ = w.Close()
	}()
	var got []flowevent.Event
	for s := bufio.NewScanner(r); s.Scan(); {
		var e flowevent.Event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("%v in %s", err, s.Text())
		}
		if got = append(got, e); len(got) == 3 {
			cancel()
		}
	}
	if status := <-done; status != 0 {
		t.Errorf("status %d", status)
	}
	if len(got) != 4 || got[0].Event != flowevent.Dropped || got[0].Reason != "spoofed-ip" || got[0].Header.TCP != ipproto.SYN || got[0].Direction != flowevent.Egress ||
		got[0].Pod == nil || got[0].Pod.ContainerID != webRef.ContainerID || got[3].Event != flowevent.Lost || got[3].Lost != 12 || got[3].Reason != flowevent.LostBuffer {
		t.Errorf("%+v", got)
	}
}

func TestObserveRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--verdict nonsense": `--verdict "nonsense": must be forwarded or dropped`, "--drop-reason none": `--drop-reason "none"`, "--ip 1.2.3": `--ip "1.2.3"`,
		"--ip fe80::1%eth0": "without its zone", "--port 0": "--port 0", "--port 70000": "--port 70000", "--protocol tpc": `--protocol "tpc"`,
		"-o table": `--output "table"`, "--pod fe80::1%eth0": "without its zone", "--pod a,,b": `--pod ""`,
	} {
		if _, errs, status := runTool(t, newFakeNode(), 0, append([]string{"observe"}, strings.Fields(args)...)...); status == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %q, want %q", args, status, errs, want)
		}
	}
	if out, _, status := runTool(t, &fakeNode{}, 0, "observe"); status != 0 || out != notLoaded+"\n" {
		t.Errorf("without a datapath: %d, %q", status, out)
	}
	if out, errs, status := runTool(t, &fakeNode{}, 0, "observe", "-o", "json"); status != 1 || out != "" || !strings.Contains(errs, "not loaded") {
		t.Errorf("without a datapath, for a program: %d, %q, %q", status, out, errs)
	}
}

// A tenant chooses a pod's name, as far as the runtime lets it: a terminal shows it and does not obey it. A line of JSON stays one.
func TestObserveEscapes(t *testing.T) {
	pod := &flowevent.Pod{Namespace: "a", Name: "\x1b[2Jb\nc"}
	e := flowevent.Event{Event: flowevent.New, Pod: pod, Source: port("10.1.0.2:1"), Destination: port("10.1.0.3:2"), Proto: "tcp"}
	var out strings.Builder
	a := &app{out: &out, colours: true}
	if err := a.say("%s", a.eventText(&e)); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "\x1b[2J") || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
	if b, err := json.Marshal(e); err != nil || strings.ContainsAny(string(b), "\x1b\n") {
		t.Errorf("%s, %v", b, err)
	}
}

// The name of a pod is what the runtime said at ADD.
func TestPodName(t *testing.T) {
	dir := t.TempDir()
	id := attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}
	if namespace, name := podName([]string{dir}, id); namespace+name != "" {
		t.Errorf("%s/%s", namespace, name)
	}
	text := `{"kind": "cniCacheV1", "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "web-0"]]}`
	if err := os.WriteFile(filepath.Join(dir, "n-c-eth0"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if namespace, name := podName([]string{dir + "/none", dir}, id); namespace != "default" || name != "web-0" {
		t.Errorf("%s/%s", namespace, name)
	}
}

// Names of pods are read once each, again while there is none, and forgotten with the attachment.
func TestPodNames(t *testing.T) {
	n := newFakeNode()
	n.podNames = map[attachments.ID][2]string{webRef: {"shop", "web-0"}}
	pods := podNames{node: n}
	all := ownersOf(n.records)
	pods.name(all)
	if got := all.view(webRef.Owner()); got.Namespace != "shop" || got.Pod != "web-0" || got.podText(false) != "shop/web-0" || !strings.HasPrefix(got.podText(true), "dbnet/3f1c") {
		t.Errorf("%+v", got)
	}
	n.named = 0
	pods.name(ownersOf(n.records))
	if want := len(n.records) - 1; n.named != want {
		t.Errorf("asked for %d names, want those of the %d pods without one", n.named, want)
	}
	pods.name(owners{})
	if len(pods.known) != 0 {
		t.Errorf("%v is still known", pods.known)
	}
	other := ownerView{ContainerID: "c", IfName: "net1", Namespace: "shop", Pod: "web-0"}
	if got := other.podText(false); got != "shop/web-0 net1" {
		t.Error(got)
	}
}
