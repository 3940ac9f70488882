// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/hostport"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeports"
)

func TestNotLoaded(t *testing.T) {
	for _, cmd := range []string{"status", "hostports", "endpoints", "conntrack list", "firewall", "drops", "resync", "unload"} {
		t.Run(cmd, func(t *testing.T) {
			out, errs, status := runTool(t, &fakeNode{}, 0, strings.Fields(cmd)...)
			if status != 0 || errs != "" || !strings.Contains(out, "Nothing is loaded") {
				t.Errorf("exit status %d, stdout %q, stderr %q", status, out, errs)
			}
			out, _, status = runTool(t, &fakeNode{}, 0, append(strings.Fields(cmd), "-o", "json")...)
			var v any
			if err := json.Unmarshal([]byte(out), &v); err != nil || status != 0 {
				t.Errorf("exit status %d, %v in %q", status, err, out)
			}
			switch v := v.(type) {
			case []any:
				if len(v) != 0 {
					t.Errorf("entries in %s", out)
				}
			case map[string]any:
				if v["loaded"] != false {
					t.Errorf("loaded is not false in %s", out)
				}
			default:
				t.Errorf("%q is neither list nor object", out)
			}
		})
	}
}

// A list without entries is an empty one in JSON: what reads it iterates.
func TestNoNullLists(t *testing.T) {
	for _, cmd := range []string{"hostports", "endpoints", "conntrack list", "bandwidth", "firewall", "deny list", "drops", "nat pools", "nat list", "nat stats"} {
		out, errs, status := runTool(t, &fakeNode{}, 0, append(strings.Fields(cmd), "-o", "json")...)
		if status != 0 || strings.Contains(out, "null") {
			t.Errorf("%s: exit status %d, %s%s", cmd, status, out, errs)
		}
	}
}

func TestStatusCannotLoad(t *testing.T) {
	n := &fakeNode{decision: &loader.Status{Backend: "none", Reason: "redirect_neigh: no", Probes: []loader.Probe{
		{Name: "redirect_neigh", Answer: loader.AnswerNo, Reason: "kernel 4.19", Consequence: "use another kernel", Required: true},
	}}}
	out, errs, status := runTool(t, n, 0, "status")
	if status != 0 || errs != "" {
		t.Errorf("exit status %d, %q", status, errs)
	}
	golden(t, "status-none.txt", out)
	n.decision = fakeStatus() // loaded once, then unloaded
	if out, _, _ := runTool(t, n, 0, "status"); strings.Contains(out, "probe") || !strings.Contains(out, "Nothing is loaded") {
		t.Errorf("after an unload:\n%s", out)
	}
}

// A hostPort that takes what a socket of the node waits for is on the screen.
func TestStatusConflicts(t *testing.T) {
	n := newFakeNode()
	n.conflicts = []nodeports.Conflict{{
		Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: 6, Port: 22}, Socket: netip.MustParseAddrPort("[::]:22"),
	}}
	out, errs, status := runTool(t, n, 0, "status")
	if status != 0 || errs != "" || !strings.Contains(out, "hostPort 0.0.0.0:22/tcp takes what a socket of the node waits for at [::]:22") {
		t.Errorf("exit status %d, %q\n%s", status, errs, out)
	}
	out, _, _ = runTool(t, n, 0, "status", "-o", "json")
	if !strings.Contains(out, `"host_port_conflicts"`) || !strings.Contains(out, `"socket": "[::]:22"`) {
		t.Error(out)
	}
}

// A node where netfilter does a part says which tables, why and since when.
func TestStatusNetfilter(t *testing.T) {
	n := newFakeNode()
	n.choices = map[string]netfilter.Choice{"auto": {
		Name: "iptables-nft", Reason: "the node has 12 rules of iptables-nft, 0 of iptables-legacy, 0 of nftables",
		Decided: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}}
	data := json.RawMessage(`{"ports":[{"backend":"ebpf"},{"backend":"iptables-nft"}],"backend":"firewalld","masquerade":"nftables"}`)
	for _, r := range n.records {
		for name, s := range r.Plugins {
			s.Data = data
			r.Plugins[name] = s
		}
	}
	out, errs, status := runTool(t, n, 0, "status")
	if status != 0 || errs != "" {
		t.Errorf("exit status %d, %q", status, errs)
	}
	golden(t, "status-netfilter.txt", out)
}

func TestErrors(t *testing.T) {
	broken := newFakeNode()
	broken.openErr = errors.New("open pins: permission denied")
	tests := []struct {
		name string
		node *fakeNode
		args string
		want string
	}{
		{"unknown command", newFakeNode(), "frobnicate", `unknown command "frobnicate"`},
		{"output", newFakeNode(), "status -o yaml", `--output "yaml": must be table or json`},
		{"extra argument", newFakeNode(), "status now", "takes no arguments"},
		{"flag", newFakeNode(), "conntrack list --frob", "unknown flag"},
		{"proto", newFakeNode(), "conntrack list --proto sctpx", "must be tcp, udp, sctp, icmp or icmp6"},
		{"pod", newFakeNode(), "conntrack list --pod nonsense", `--pod "nonsense": neither an address nor a pod of this node`},
		{"no directory", newFakeNode(), "install", "needs a directory"},
		{"no plugin of that name", newFakeNode(), "install a bridge nonsense", `"nonsense" is not a plugin`},
		{"cannot open", broken, "status", "permission denied"},
		{"cannot open", broken, "conntrack list", "permission denied"},
		{"unload in use", newFakeNode(), "unload", "2 attachments would lose"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, status := runTool(t, tt.node, 0, strings.Fields(tt.args)...)
			if status != 1 || out != "" {
				t.Errorf("exit status %d, stdout %q", status, out)
			}
			if !strings.HasPrefix(errs, "sluice: ") || !strings.Contains(errs, tt.want) || strings.Count(errs, "\n") != 1 {
				t.Errorf("stderr %q lacks %q, or is not one line", errs, tt.want)
			}
			if tt.node.dp.Unloaded > 0 {
				t.Error("unloaded")
			}
		})
	}
}

func TestFlowsErrorWhileReading(t *testing.T) {
	n := newFakeNode()
	n.readErr = errors.New("boom")
	if _, errs, status := runTool(t, n, 0, "conntrack", "list"); status != 1 || !strings.Contains(errs, "boom") {
		t.Errorf("exit status %d, %q", status, errs)
	}
}

func TestFlowFilters(t *testing.T) {
	tests := []struct {
		args string
		want []string // remotes, in order
	}{
		{"", []string{"198.51.100.7:51234", "[2001:db8:ffff::7]:443", "198.51.100.9:40000"}},
		{"--sort bytes", []string{"198.51.100.7:51234", "[2001:db8:ffff::7]:443", "198.51.100.9:40000"}},
		{"--sort age", []string{"[2001:db8:ffff::7]:443", "198.51.100.9:40000", "198.51.100.7:51234"}},
		{"--proto udp", []string{"198.51.100.9:40000"}},
		{"--proto TCP --limit 1", []string{"198.51.100.7:51234"}},
		{"--kind masquerade", []string{"[2001:db8:ffff::7]:443"}},
		{"--state unreplied", []string{"198.51.100.9:40000"}},
		{"--pod 10.1.0.2", []string{"198.51.100.7:51234"}},
		{"--pod shop/web-0", []string{"198.51.100.7:51234", "[2001:db8:ffff::7]:443"}},
		{"--pod 3f1c", []string{"198.51.100.7:51234", "[2001:db8:ffff::7]:443"}},
		{"--pod dbnet/3f1c/eth0", []string{"198.51.100.7:51234", "[2001:db8:ffff::7]:443"}},
		{"--remote 2001:db8:ffff::7", []string{"[2001:db8:ffff::7]:443"}},
		{"--network dbnet --container 3f1c", []string{"198.51.100.7:51234", "[2001:db8:ffff::7]:443"}},
		{"--network nowhere", nil},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := newFakeNode()
			n.podNames = map[attachments.ID][2]string{webRef: {"shop", "web-0"}}
			out, errs, status := runTool(t, n, 0, append([]string{"conntrack", "list", "-o", "json"}, strings.Fields(tt.args)...)...)
			if status != 0 {
				t.Fatal(errs)
			}
			var flows []struct {
				Remote string `json:"remote"`
			}
			if err := json.Unmarshal([]byte(out), &flows); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range flows {
				got = append(got, f.Remote)
			}
			if strings.Join(got, " ") != strings.Join(tt.want, " ") {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// A pod is found by what the commands print, and by nothing that is almost that.
func TestPodIsCalled(t *testing.T) {
	o := ownerView{Network: "dbnet", ContainerID: "3f1c9a7be0d2ff", IfName: "net1", Namespace: "shop", Pod: "web-0"}
	for text, want := range map[string]bool{
		o.text(false): true, o.text(true): true, o.podText(false): true, "shop/web-0": true, "3f1c": true, "3f1c9a7be0d2ff": true,
		"": false, "shop/web": false, "web-0": false, "shop/": false, "f1c": false, "dbnet//net1": false, "dbnet/3f1c": false, "dbnet/3f1c/eth0": false, "other/3f1c/net1": false,
	} {
		if o.isCalled(text) != want {
			t.Errorf("%q: want %t", text, want)
		}
	}
	o.Namespace, o.Pod = "", ""
	if o.isCalled("/") || (ownerView{}).isCalled("") {
		t.Error("an attachment without a name is called by none")
	}
}

func TestSyncAndUnload(t *testing.T) {
	n := newFakeNode()
	if out, _, status := runTool(t, n, 0, "resync"); status != 0 || n.dp.Synced != 1 || !strings.Contains(out, "up to date") {
		t.Errorf("sync: %d, %q", status, out)
	}
	if out, _, status := runTool(t, n, 0, "unload", "--force", "-o", "json"); status != 0 || n.dp.Unloaded != 1 || !strings.Contains(out, `"done": true`) {
		t.Errorf("unload: %d, %q", status, out)
	}
	n = newFakeNode()
	n.records, n.dp.State.Endpoints, n.dp.Denied = nil, nil, nil
	if _, errs, status := runTool(t, n, 0, "unload"); status != 0 || n.dp.Unloaded != 1 {
		t.Errorf("unload of an idle node: %d, %q", status, errs)
	}
	n = newFakeNode()
	n.records = nil // endpoints without a record count too
	if _, _, status := runTool(t, n, 0, "unload"); status != 1 || n.dp.Unloaded != 0 {
		t.Errorf("unload with endpoints: %d", status)
	}
}

// A node without programs gets them by --load only. Where they cannot run, pods get tables, and that is no failure.
func TestResyncLoads(t *testing.T) {
	for name, tt := range map[string]struct {
		node   *fakeNode
		args   []string
		status int
		synced int
		out    string
	}{
		"not asked":      {node: &fakeNode{}, args: []string{"resync"}, out: notLoaded},
		"asked":          {node: &fakeNode{}, args: []string{"resync", "--load"}, synced: 1, out: "The programs are loaded"},
		"cannot run":     {node: &fakeNode{loadErr: fmt.Errorf("%w: no BTF", loader.ErrUnavailable)}, args: []string{"resync", "--load"}, out: "no BTF."},
		"fails":          {node: &fakeNode{loadErr: errors.New("no space")}, args: []string{"resync", "--load"}, status: 1, out: "no space"},
		"loaded already": {node: newFakeNode(), args: []string{"resync", "--load"}, synced: 1, out: "up to date"},
		"loaded, but cannot any more": {
			node: &fakeNode{dp: loadertest.Datapath{State: &loader.Status{}}, loadErr: fmt.Errorf("%w: the backend", loader.ErrUnavailable)},
			args: []string{"resync", "--load"}, synced: 1, out: "up to date",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, status := runTool(t, tt.node, 0, tt.args...)
			if status != tt.status || tt.node.dp.Synced != tt.synced || tt.node.dp.Handles != 0 || !strings.Contains(out+errs, tt.out) {
				t.Errorf("exit status %d, synced %d times, %d open: %s%s", status, tt.node.dp.Synced, tt.node.dp.Handles, out, errs)
			}
		})
	}
}

// A datapath whose pins were lost comes back empty. Pods of before have no entry, and resync does not say that all is well.
func TestResyncNamesLostPods(t *testing.T) {
	lost := attachments.ID{Network: "net", ContainerID: "lost", IfName: "eth0"}
	uses := json.RawMessage(`{"masquerade": "ebpf"}`)
	record := func(id attachments.ID, state string) *attachments.Record {
		return &attachments.Record{Version: 1, ID: id, NetNS: "/run/netns/x", Plugins: map[string]attachments.Section{"bridge": {State: state, Data: uses}}}
	}
	served := record(webRef, attachments.StateDone)
	for name, tt := range map[string]struct {
		node   *fakeNode
		status int
		out    string
	}{
		"served":           {node: &fakeNode{dp: loadertest.Datapath{State: fakeStatus()}, records: []*attachments.Record{served}}, out: "up to date"},
		"lost":             {node: &fakeNode{dp: loadertest.Datapath{State: fakeStatus()}, records: []*attachments.Record{served, record(lost, attachments.StateDone)}}, status: 1, out: "1 attachment"},
		"nothing loaded":   {node: &fakeNode{records: []*attachments.Record{record(lost, attachments.StateDone)}}, status: 1, out: "1 attachment"},
		"ADD is under way": {node: &fakeNode{dp: loadertest.Datapath{State: fakeStatus()}, records: []*attachments.Record{record(lost, attachments.StateIntent)}}, out: "up to date"},
		"pod is gone": {node: &fakeNode{dp: loadertest.Datapath{State: fakeStatus()}, records: []*attachments.Record{record(lost, attachments.StateDone)}, report: orphans.Report{Items: []orphans.Item{
			{Kind: orphans.Record, What: "record of " + lost.String()},
		}}}, out: "up to date"},
		"other tables": {node: &fakeNode{dp: loadertest.Datapath{State: fakeStatus()}, records: []*attachments.Record{{ID: lost, Plugins: map[string]attachments.Section{
			"bridge": {State: attachments.StateDone, Data: json.RawMessage(`{"masquerade": "nftables"}`)},
		}}}}, out: "up to date"},
	} {
		for _, args := range [][]string{{"resync"}, {"resync", "--load"}} {
			t.Run(name+" "+args[len(args)-1], func(t *testing.T) {
				n := tt.node
				out, errs, status := runTool(t, n, 0, args...)
				if status != tt.status || n.dp.Handles != 0 || !strings.Contains(out+errs, tt.out) || tt.status != 0 && !strings.Contains(errs, lost.String()) {
					t.Errorf("exit status %d, %d open: %s%s", status, n.dp.Handles, out, errs)
				}
			})
		}
	}
}

// With --await a resync waits for the device's address. A device that is not there is an error.
func TestResyncAwait(t *testing.T) {
	n := newFakeNode()
	if _, errs, status := runTool(t, n, 0, "resync", "--await", "no-such-device"); status != 1 || n.dp.Synced != 0 || !strings.Contains(errs, "no-such-device") {
		t.Errorf("no device: exit status %d, synced %d times: %s", status, n.dp.Synced, errs)
	}
	if _, errs, status := runTool(t, n, 0, "resync", "--await", "lo"); status != 0 || n.dp.Synced != 1 {
		t.Errorf("lo: exit status %d, synced %d times: %s", status, n.dp.Synced, errs)
	}
}

func TestUnreadableRecords(t *testing.T) {
	n := newFakeNode()
	n.records[1].Corrupt = true
	out, _, status := runTool(t, n, 0, "status")
	if status != 0 || !strings.Contains(out, "1 record cannot be read") {
		t.Errorf("exit status %d\n%s", status, out)
	}
	n.readErr = errors.New("permission denied")
	out, errs, status := runTool(t, n, 0, "hostports")
	if status != 0 || !strings.Contains(errs, "permission denied") || !strings.Contains(out, "8080") {
		t.Errorf("hostports: %d, %q, %q", status, out, errs)
	}
	if _, errs, status := runTool(t, n, 0, "status"); status != 1 || !strings.Contains(errs, "permission denied") {
		t.Errorf("status: %d, %q", status, errs)
	}
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	binary := filepath.Join(t.TempDir(), install.Multicall)
	for _, program := range []string{install.Multicall, install.Helper, install.IPAM, install.IPAMStore} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(binary), program), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, errs, status := runTool(t, newFakeNode(), 0, "install", "--binary", binary, dir); status != 1 || !strings.Contains(errs, install.DHCP) {
		t.Errorf("without %s: status %d, %q", install.DHCP, status, errs)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has begun all the same: %v", err)
	}
	other := filepath.Join(filepath.Dir(binary), install.DHCP)
	if err := os.WriteFile(other, []byte("y"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, errs, status := runTool(t, newFakeNode(), 0, "install", "--binary", binary, dir)
	if status != 0 {
		t.Fatal(errs)
	}
	for _, name := range install.Plugins() {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil || !strings.Contains(out, filepath.Join(dir, name)) {
			t.Errorf("%s: %v in\n%s", name, err, out)
		}
	}
	starter := func(program string) string { return "#!" + filepath.Join(dir, program) + "\n" }
	for name, want := range map[string]string{
		"dhcp": starter(install.DHCP), "bridge": starter(install.Multicall), "loopback": starter(install.Multicall),
		"whereabouts": starter(install.IPAM), install.IPAM: install.IPAM, install.IPAMStore: install.IPAMStore,
		install.DHCP: "y", install.Multicall: install.Multicall, install.Helper: install.Helper,
	} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	other = t.TempDir()
	if _, errs, status := runTool(t, newFakeNode(), 0, "install", "--binary", binary, "--runtime-dir", "/opt/cni/bin", other); status != 0 {
		t.Errorf("through another mount: status %d, %s", status, errs)
	}
	if b, err := os.ReadFile(filepath.Join(other, "bridge")); err != nil || string(b) != "#!/opt/cni/bin/"+install.Multicall+"\n" {
		t.Errorf("through another mount: bridge is %q, %v", b, err)
	}
	few := t.TempDir()
	if _, errs, status := runTool(t, newFakeNode(), 0, "install", "--binary", binary, few, "bridge"); status != 0 {
		t.Errorf("one plugin: status %d, %s", status, errs)
	}
	var installed []string
	entries, err := os.ReadDir(few)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") { // the lock
			installed = append(installed, e.Name())
		}
	}
	if want := []string{"bridge", install.Multicall, install.Helper}; err != nil || !slices.Equal(installed, want) {
		t.Errorf("bridge gave %v, %v, want %v", installed, err, want)
	}
	_, errs, status = runTool(t, newFakeNode(), 0, "install", dir) // there is none beside the test binary
	if status != 1 || !strings.Contains(errs, "--binary") {
		t.Errorf("exit status %d, %q", status, errs)
	}
}

func TestVersion(t *testing.T) {
	out, _, status := runTool(t, &fakeNode{}, 0, "version", "-o", "json")
	var v versionView
	if err := json.Unmarshal([]byte(out), &v); err != nil || status != 0 || v.MapLayout != loader.PinVersion || len(v.Plugins) == 0 {
		t.Errorf("exit status %d, %v, %q", status, err, out)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errs, status := runTool(t, &fakeNode{}, 0, "completion", shell); status != 0 || len(out) < 1000 {
			t.Errorf("%s: exit status %d, %q", shell, status, errs)
		}
	}
	for args, want := range map[string]string{
		"__complete conntrack list --container ": "3f1c9a7be0d24455aabbccdd",
		"__complete hostports --network":         "--network",
		"__complete conntrack list --kind ":      "masquerade",
		"__complete status -o ":                  "json",
	} {
		words := strings.Split(args, " ")
		if out, _, _ := runTool(t, newFakeNode(), 0, words...); !strings.Contains(out, want) {
			t.Errorf("%q gives %q, want %q", args, out, want)
		}
	}
}

func TestColoursOnlyWhenAsked(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out, err: &out, node: newFakeNode(), colours: true}
	if a.run(t.Context(), []string{"status"}); !strings.Contains(out.String(), "\x1b[") {
		t.Error("no colour")
	}
	if plain, _, _ := runTool(t, newFakeNode(), 0, "status"); strings.Contains(plain, "\x1b") {
		t.Error("colour without a terminal")
	}
}

func TestHuman(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1.0K", 1536: "1.5K", 10 << 10: "10K", 1 << 20: "1.0M", 1<<20 - 1: "1.0M", 5 << 40: "5.0T", 1<<64 - 1: "16E"} {
		if got := bytesText(n); got != want {
			t.Errorf("bytesText(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{999: "999", 1000: "1.0k", 999_999: "1.0M", 15_500: "16k"} {
		if got := countText(n); got != want {
			t.Errorf("countText(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0ms", 350 * time.Millisecond: "350ms", 59 * time.Second: "59s", 3*time.Minute + 5*time.Second: "3m5s",
		2*time.Hour + 10*time.Minute: "2h10m", 100 * time.Hour: "4d4h",
	} {
		if got := ageText(d); got != want {
			t.Errorf("ageText(%v) = %q, want %q", d, got, want)
		}
	}
}

// What a killed load or unload has left is removed too, while no packet can use it.
func TestUnloadOfAPart(t *testing.T) {
	for _, tt := range []struct {
		args    string
		records bool
		want    int
	}{{"unload", false, 1}, {"unload", true, 0}, {"unload --force", true, 1}} {
		n := newFakeNode()
		n.dp.State = nil
		if !tt.records {
			n.records = nil
		}
		out, errs, status := runTool(t, n, 0, strings.Fields(tt.args)...)
		if status != 0 || !strings.Contains(out, "Nothing is loaded") || n.cleared != tt.want {
			t.Errorf("%s with records %t: cleared %d times, want %d; %d, %s%s", tt.args, tt.records, n.cleared, tt.want, status, out, errs)
		}
	}
}

// In the agent's container no file can be made. The error says what to do instead.
func TestSysdumpReadOnly(t *testing.T) {
	t.Chdir("/proc")
	_, errs, status := runTool(t, newFakeNode(), 0, "sysdump")
	if status != 1 || !strings.Contains(errs, "sluice sysdump - > sluice-") {
		t.Errorf("exit status %d, %q", status, errs)
	}
	if _, errs, _ := runTool(t, newFakeNode(), 0, "sysdump", "/proc/none.tar.gz"); strings.Contains(errs, "sysdump -") {
		t.Errorf("with a file of the operator's: %q", errs)
	}
}
