// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// chain is a network of the five usual plugins, as either suite takes it.
func chain(t *testing.T, name, bridge, subnet, subnet6, backend string, more ...map[string]any) []byte {
	t.Helper()
	plugins := []map[string]any{
		{
			"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
			"ipam": map[string]any{"type": "host-local", "ranges": [][]map[string]any{{{"subnet": subnet}}, {{"subnet": subnet6}}}},
		},
		{"type": "portmap", "backend": backend, "capabilities": map[string]bool{"portMappings": true}},
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "plugins": append(plugins, more...)})
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

// limited is a bandwidth plugin, whose egress limit makes an IFB.
var limited = map[string]any{"type": "bandwidth", "egressRate": 8_000_000, "egressBurst": 800_000}

func runtimeOf(t *testing.T, n *netlab.Node, dir string, conf []byte) *netlab.Runtime {
	t.Helper()
	rt, err := n.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: conf})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func addPod(t *testing.T, n *netlab.Node, rt *netlab.Runtime, name string, port int) (*netlab.Pod, netlab.Attachment) {
	t.Helper()
	p := n.PodT(t, name)
	att := netlab.Attachment{ContainerID: name, NetNS: p.Path, Capabilities: map[string]any{"portMappings": []map[string]any{
		{"hostPort": port, "containerPort": 80, "protocol": "tcp"},
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), netlab.Patient(time.Minute))
	defer cancel()
	if _, err := rt.Add(ctx, att); err != nil {
		t.Fatalf("ADD %s: %v", name, err)
	}
	return p, att
}

// deletePod removes a pod's namespace and waits for the kernel to have removed
// its device, and that one's other end.
func deletePod(t *testing.T, n *netlab.Node, p *netlab.Pod) {
	t.Helper()
	links := func() int {
		var out string
		if err := n.Do(func() (err error) {
			out, err = netlab.Run("ip", "-o", "link", "show")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return strings.Count(out, "\n")
	}
	before := links()
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(netlab.Patient(10 * time.Second)); links() >= before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the device of a namespace that is gone stays")
		}
	}
}

func snapshot(t *testing.T, n *netlab.Node) netlab.Snapshot {
	t.Helper()
	s, err := n.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(s, func(l string) bool { return strings.Contains(l, "fe80:") }) // in the kernel's own time
}

// findings runs the doctor and returns what it says, by level.
func findings(t *testing.T, n *netlab.Node) map[string][]findingView {
	t.Helper()
	out, errs, status := real(t, n, "doctor", "-o", "json")
	var v doctorView
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	if want := map[string]int{"ok": 0, "info": 0, "warning": exitWarnings, "problem": exitProblems}[v.Worst]; status != want || errs != "" {
		t.Errorf("worst is %s, exit status %d, %s", v.Worst, status, errs)
	}
	by := map[string][]findingView{}
	for _, f := range v.Findings {
		if strings.HasPrefix(f.Text, "host mount namespace:") { // a lab is never in the first one
			continue
		}
		by[f.Level] = append(by[f.Level], f)
	}
	return by
}

func wantHealthy(t *testing.T, n *netlab.Node, when string) {
	t.Helper()
	by := findings(t, n)
	for _, level := range []string{"warning", "problem"} {
		for _, f := range by[level] {
			t.Errorf("%s: %s %s: %s", when, level, f.Check, f.Text)
		}
	}
	if len(by["ok"]) < 5 {
		t.Errorf("%s: little is as it should be: %+v", when, by["ok"])
	}
}

// A node of ours has nothing to say, from before the first pod to after the last.
func TestPrivilegedHealthy(t *testing.T) {
	set := mustBuild(t)
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
	wantHealthy(t, l.Node, "fresh")
	rt := runtimeOf(t, l.Node, set.Dir, chain(t, "net0", "cni0", "10.1.0.0/16", "fd00:10:1::/64", "", map[string]any{"type": "firewall"}))
	p, att := addPod(t, l.Node, rt, "a", 8080)
	wantHealthy(t, l.Node, "with a pod")
	if v := realJSON[cleanupView](t, l.Node, "cleanup"); len(v.Leftovers) != 0 {
		t.Errorf("leftovers with a pod: %+v", v.Leftovers)
	}
	before := snapshot(t, l.Node)
	if v := realJSON[cleanupView](t, l.Node, "cleanup", "--yes", "--force"); !v.Removed {
		t.Errorf("%+v", v)
	}
	if d := netlab.DiffSoon(before, func() netlab.Snapshot { return snapshot(t, l.Node) }); d != "" {
		t.Errorf("a sweep of a healthy node changed it:\n%s", d)
	}
	if err := rt.Check(t.Context(), att); err == nil {
		err = rt.Del(t.Context(), att)
		if err != nil {
			t.Error(err)
		}
	}
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	wantHealthy(t, l.Node, "after the last pod")
}

func mustBuild(t *testing.T) *testbin.Set {
	t.Helper()
	set, err := testbin.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() })
	return set
}

// What upstream's pods leave when their namespaces go without a DEL is
// named and removed, and nothing else: not what a living pod has, nor what an
// administrator has put into the same chains.
func TestPrivilegedCleanupOfUpstream(t *testing.T) {
	dir, err := testbin.Reference(t.Context(), "bridge", "host-local", "portmap", "firewall", "bandwidth")
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"iptables", "nftables"} {
		for _, forgotten := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cache lost %v", backend, forgotten), func(t *testing.T) {
				l := netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
				rt := runtimeOf(t, l.Node, dir, chain(t, "net0", "cni0", "10.1.0.0/16", "fd00:10:1::/64", backend, map[string]any{"type": "firewall"}, limited))
				addPod(t, l.Node, rt, "live", 8080)
				administrator(t, l.Node, backend)
				settle, att := addPod(t, l.Node, rt, "settle", 8081) // so that the shared chains and cursors are there
				if err := rt.Del(t.Context(), att); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(settle.Delete(), l.Node.AwaitIPv6("cni0")); err != nil {
					t.Fatal(err)
				}
				before := snapshot(t, l.Node)

				p, att := addPod(t, l.Node, rt, "gone", 8082)
				if forgotten { // the runtime deleted the container, but not all it had
					if err := rt.ForgetCache(att); err != nil {
						t.Fatal(err)
					}
					shell(t, l.Node, "grep -l gone /var/lib/cni/networks/net0/* | xargs rm")
				}
				deletePod(t, l.Node, p)
				dirty := snapshot(t, l.Node)
				wantNamed(t, l.Node, dirty, backend)
				if d := netlab.Diff(dirty, snapshot(t, l.Node)); d != "" {
					t.Errorf("looking changed the node:\n%s", d)
				}
				v := realJSON[cleanupView](t, l.Node, "cleanup", "--yes", "--force")
				if !v.Removed || len(v.Leftovers) < 5 {
					t.Errorf("%+v", v)
				}
				after := snapshot(t, l.Node)
				kept := func(s netlab.Snapshot) netlab.Snapshot { // the runtime's and IPAM's, which are not ours to remove
					return s.Without("file /var/lib/cni/", "file /run/sluice/")
				}
				if d := netlab.Diff(kept(before), kept(after)); d != "" {
					t.Errorf("after the sweep (- gone, + left behind):\n%s", d)
				}
				again := realJSON[cleanupView](t, l.Node, "cleanup")
				if slices.ContainsFunc(again.Leftovers, func(x leftoverView) bool { return x.Removable }) {
					t.Errorf("left to sweep: %+v", again.Leftovers)
				}
			})
		}
	}
}

// administrator puts rules where ours are.
func administrator(t *testing.T, n *netlab.Node, backend string) {
	t.Helper()
	shell(t, n, `iptables -A CNI-FORWARD -s 10.99.0.1/32 -p tcp -j ACCEPT
		iptables -A CNI-ADMIN -s 10.99.0.2/32 -j ACCEPT
		iptables -t nat -N CNI-mine; iptables -t nat -A POSTROUTING -s 10.99.0.3/32 -j CNI-mine
		ip link add bwpmine type ifb`)
	if backend == "nftables" {
		shell(t, n, `nft add rule ip cni_hostport hostports tcp dport 9999 dnat to 10.99.0.4:80
			nft add rule inet cni_plugins_masquerade masq_checks ip saddr 10.99.0.5 masquerade`)
	}
}

func shell(t *testing.T, n *netlab.Node, script string) {
	t.Helper()
	if err := n.Do(func() error {
		_, err := netlab.Run("sh", "-ec", script)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// wantNamed checks that the doctor names what is left, each with what to do.
func wantNamed(t *testing.T, n *netlab.Node, dirty netlab.Snapshot, backend string) {
	t.Helper()
	if len(dirty.Grep("bwp")) < 2 {
		t.Fatal("the reference left no IFB: this test shows nothing")
	}
	var text strings.Builder
	for _, f := range findings(t, n)["warning"] {
		if f.Check != "leftover" || f.Do != "sluice cleanup --yes removes it" {
			t.Errorf("unexpected: %+v", f)
		}
		fmt.Fprintln(&text, f.Text)
	}
	want := []string{"device bwp", "rules for 10.1.0.", "rules for fd00:10:1::"}
	if backend == "iptables" {
		want = append(want, "net0/gone: chain CNI-DN-", "net0/gone: chain CNI-")
	} else {
		want = append(want, "gone: ports of 10.1.0.", "gone: ports of fd00:10:1::", "net0/gone: masquerading")
	}
	for _, w := range want {
		if !strings.Contains(text.String(), w) {
			t.Errorf("the doctor does not name %q:\n%s", w, text.String())
		}
	}
}
