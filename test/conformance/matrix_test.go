// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// step is one plugin of the chain that the matrix walks.
type step struct {
	plugin string
	keys   object
}

func ipam() object {
	return object{
		"type":   "host-local",
		"ranges": [][]object{{{"subnet": "10.1.0.0/16"}}, {{"subnet": "fd00:10:1::/64"}}},
		"routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
	}
}

// chain is every chained plugin behind bridge. All of them see the same
// attachment, so each one's prevResult is real.
func chain() []step {
	return []step{
		{"bridge", object{"bridge": "cni0", "isGateway": true, "ipMasq": true, "ipam": ipam(), "dns": object{"nameservers": []string{"10.1.0.1"}}}},
		{"tuning", object{"sysctl": object{"net.core.somaxconn": "500"}}},
		{"portmap", object{"runtimeConfig": object{"portMappings": []object{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}}},
		{"firewall", object{}},
		{"bandwidth", object{"runtimeConfig": object{"bandwidth": object{"ingressRate": 1000000, "ingressBurst": 2147483647}}}},
		{"sbr", object{}},
	}
}

func (s step) conf(v string, prev any) object {
	c := object{"cniVersion": v, "name": "net0", "type": s.plugin}
	for k, val := range s.keys {
		c[k] = val
	}
	if prev != nil {
		c["prevResult"] = prev
	}
	return c
}

// The chain in every version: ADD, CHECK, STATUS, GC that keeps the pod, CHECK
// again, DEL twice.
func TestPrivilegedChain(t *testing.T) {
	t.Parallel()
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			final := addChain(t, n, v)
			for _, s := range chain() {
				t.Run(s.plugin, func(t *testing.T) { verbs(t, n, s, v, final) })
			}
			for range 2 {
				delChain(t, n, v, final)
			}
		})
	}
}

// addChain runs ADD of every plugin that serves v and returns the last result.
func addChain(t *testing.T, n *node, v string) object {
	t.Helper()
	var prev object
	for _, s := range chain() {
		t.Run(s.plugin+"/ADD", func(t *testing.T) {
			var conf object
			if prev == nil {
				conf = s.conf(v, nil)
			} else {
				conf = s.conf(v, prev)
			}
			out, err := n.call(s.plugin, "ADD", nil, conf)
			if !atLeast(t, v, since(s.plugin)) {
				wantCode(t, "ADD", err, 1)
				return
			}
			if err != nil {
				t.Fatalf("ADD: %v", err)
			}
			got := decode(t, v, out)
			if prev == nil {
				assertShape(t, v, got)
			} else if d := cmp.Diff(prev, got); d != "" {
				t.Errorf("a chained plugin changed the result (- before, + after):\n%s", d)
			}
			prev = got
		})
	}
	if prev == nil {
		t.FailNow()
	}
	return prev
}

// verbs runs what needs an attachment and leaves it as it is.
func verbs(t *testing.T, n *node, s step, v string, prev object) {
	conf := s.conf(v, prev)
	gc := s.conf(v, nil)
	delete(gc, "runtimeConfig")
	gc["cni.dev/valid-attachments"] = []object{{"containerID": "pod", "ifname": "eth0"}}
	for _, verb := range []string{"CHECK", "STATUS", "GC", "CHECK"} {
		t.Run(verb, func(t *testing.T) {
			c := conf
			switch verb {
			case "GC":
				c = gc
			case "STATUS":
				c = s.conf(v, nil)
			}
			out, err := n.call(s.plugin, verb, nil, c)
			assertSilent(t, s.plugin, verb, v, out, err)
		})
	}
	t.Run("VERSION", func(t *testing.T) { assertVersion(t, n, s.plugin, v) })
}

// assertSilent wants success without a word, or code 1 where the plugin or the
// verb is younger than the version.
func assertSilent(t *testing.T, plugin, verb, v, out string, err error) {
	t.Helper()
	if !atLeast(t, v, since(plugin)) || !atLeast(t, v, verbSince(verb)) {
		wantCode(t, verb, err, 1)
		return
	}
	if err != nil {
		t.Errorf("%s: %v", verb, err)
	}
	if strings.TrimSpace(out) != "" {
		t.Errorf("%s prints %q", verb, out)
	}
}

func assertVersion(t *testing.T, n *node, plugin, v string) {
	t.Helper()
	out, err := n.call(plugin, "VERSION", nil, object{"cniVersion": v})
	if err != nil {
		t.Fatalf("VERSION: %v", err)
	}
	var got struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("VERSION: %v: %q", err, out)
	}
	all := versions()
	want := all[slices.Index(all, since(plugin)):]
	if d := cmp.Diff(want, got.SupportedVersions); d != "" || got.CNIVersion != "1.1.0" {
		t.Errorf("VERSION of cniVersion %s, supported (- want, + got):\n%s", got.CNIVersion, d)
	}
}

func delChain(t *testing.T, n *node, v string, prev object) {
	t.Helper()
	steps := chain()
	slices.Reverse(steps)
	for _, s := range steps {
		var p any
		if atLeast(t, v, "0.4.0") {
			p = prev
		}
		out, err := n.call(s.plugin, "DEL", nil, s.conf(v, p))
		assertSilent(t, s.plugin, "DEL", v, out, err)
	}
}

// ipams is every IPAM plugin that works without help, with a configuration that
// gives one address of each family.
func ipams() map[string]object {
	return map[string]object{
		"host-local": ipam(),
		"static": {
			"type":      "static",
			"addresses": []object{{"address": "10.1.0.2/16", "gateway": "10.1.0.1"}, {"address": "fd00:10:1::2/64", "gateway": "fd00:10:1::1"}},
			"routes":    []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
		},
	}
}

// Every IPAM plugin on its own, as a main plugin calls it.
func TestPrivilegedIPAM(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for plugin, conf := range ipams() {
		for _, v := range versions() {
			t.Run(plugin+"/"+v, func(t *testing.T) { ipamVerbs(t, n, plugin, v, conf) })
		}
	}
}

func ipamVerbs(t *testing.T, n *node, plugin, v string, ipam object) {
	conf := object{"cniVersion": v, "name": "ipam-" + v, "type": "bridge", "ipam": ipam}
	out, err := n.call(plugin, "ADD", nil, conf)
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	got := decode(t, v, out)
	if got["interfaces"] != nil {
		t.Errorf("an IPAM result names interfaces: %s", out)
	}
	assertAddresses(t, v, got, false)
	conf["prevResult"] = got
	for _, verb := range []string{"CHECK", "STATUS", "DEL", "DEL"} {
		out, err := n.call(plugin, verb, nil, conf)
		assertSilent(t, plugin, verb, v, out, err)
	}
	gc := object{"cniVersion": v, "name": "ipam-" + v, "type": "bridge", "ipam": ipam, "cni.dev/valid-attachments": []object{}}
	out, err = n.call(plugin, "GC", nil, gc)
	assertSilent(t, plugin, "GC", v, out, err)
	assertVersion(t, n, plugin, v)
}

// loopback alone and behind another plugin.
func TestPrivilegedLoopback(t *testing.T) {
	t.Parallel()
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			conf := object{"cniVersion": v, "name": "lo", "type": "loopback"}
			env := map[string]string{"CNI_IFNAME": "lo"}
			out, err := n.call("loopback", "ADD", env, conf)
			if err != nil {
				t.Fatalf("ADD: %v", err)
			}
			got := decode(t, v, out)
			if atLeast(t, v, "0.3.0") {
				ifs, _ := got["interfaces"].([]any)
				if len(ifs) != 1 || ifs[0].(map[string]any)["name"] != "lo" || ifs[0].(map[string]any)["sandbox"] != n.pod.Path {
					t.Errorf("interfaces: %s", out)
				}
			}
			conf["prevResult"] = got
			for _, verb := range []string{"CHECK", "STATUS", "DEL", "DEL"} {
				out, err := n.call("loopback", verb, env, conf)
				assertSilent(t, "loopback", verb, v, out, err)
			}
			delete(conf, "prevResult")
			conf["cni.dev/valid-attachments"] = []object{}
			out, err = n.call("loopback", "GC", nil, conf)
			assertSilent(t, "loopback", "GC", v, out, err)
			assertVersion(t, n, "loopback", v)
		})
	}
}

// A plugin run by hand says what it is, on stderr, and is content.
func TestNoCommand(t *testing.T) {
	t.Parallel()
	for _, plugin := range testbin.Plugins() {
		var stderr strings.Builder
		out, err := programs.Run(testbin.Call{Plugin: plugin, Env: map[string]string{"CNI_COMMAND": testbin.Unset}, Stderr: &stderr})
		if err != nil || out != "" {
			t.Errorf("%s: %v, stdout %q; want success and no word on stdout", plugin, err, out)
		}
		if !strings.Contains(stderr.String(), plugin) || !strings.Contains(stderr.String(), "1.1.0") {
			t.Errorf("%s: stderr is %q, want name and versions", plugin, stderr.String())
		}
	}
}

// VERSION needs nothing but CNI_COMMAND.
func TestVersionNeedsNothing(t *testing.T) {
	t.Parallel()
	for _, plugin := range testbin.Plugins() {
		for _, stdin := range []string{"", "{}", `{"cniVersion":"0.2.0"}`, "not json"} {
			out, err := programs.Run(testbin.Call{
				Plugin: plugin, Verb: "VERSION", Stdin: []byte(stdin), Env: map[string]string{"CNI_PATH": testbin.Unset},
			})
			if err != nil || !strings.Contains(out, `"supportedVersions"`) || strings.Count(strings.TrimSpace(out), "\n") != 0 {
				t.Errorf("%s with stdin %q: %v, %q; want one line", plugin, stdin, err, out)
			}
		}
	}
}
