// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// mainPlugin is a plugin that makes an interface, other than bridge, which the
// chain of matrix_test.go begins with.
type mainPlugin struct {
	name string
	keys object
	// need skips the test on a kernel without the kind of device.
	need func(t testing.TB)
	// interfaces is how many the result lists; the last one is the pod's.
	interfaces int
	// alone says that the plugin works without IPAM.
	alone bool
	// before are the arguments of ip(8) for what the node must have.
	before []string
}

func mainPlugins() []mainPlugin {
	return []mainPlugin{
		{name: "ptp", keys: object{"ipMasq": true}, interfaces: 2},
		{name: "host-device", keys: object{"device": "nic0"}, interfaces: 1, alone: true, before: []string{"link add nic0 type veth peer name wire0"}},
		{name: "tap", need: link("tap"), keys: object{"owner": 1000, "mtu": 1400}, interfaces: 1, alone: true},
		{name: "macvlan", keys: object{"master": "eth0"}, need: link("macvlan"), interfaces: 1, alone: true},
		{name: "ipvlan", keys: object{"master": "eth0"}, need: link("ipvlan"), interfaces: 1},
		{name: "vlan", keys: object{"master": "eth0", "vlanId": 100}, need: link("vlan"), interfaces: 1},
		{name: "dummy", need: link("dummy"), interfaces: 1},
	}
}

func link(kind string) func(testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		require.Link(t, kind)
	}
}

func (m mainPlugin) conf(v string) object {
	c := object{"cniVersion": v, "name": "net0", "type": m.name, "ipam": ipam(), "dns": object{"nameservers": []string{"10.1.0.1"}}}
	maps.Copy(c, m.keys)
	return c
}

// node makes a node with what the plugin needs on it.
func (m mainPlugin) node(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	for _, args := range m.before {
		if err := n.Node.Do(func() error { return exec.Command("ip", strings.Fields(args)...).Run() }); err != nil {
			t.Fatalf("ip %s: %v", args, err)
		}
	}
	return n
}

// eachMain runs f for every plugin and version, on a node of its own.
func eachMain(t *testing.T, f func(t *testing.T, m mainPlugin, v string)) {
	t.Helper()
	for _, m := range mainPlugins() {
		t.Run(m.name, func(t *testing.T) {
			if m.need != nil {
				m.need(t)
			}
			for _, v := range versions() {
				t.Run(v, func(t *testing.T) {
					t.Parallel()
					f(t, m, v)
				})
			}
		})
	}
}

// Every verb of every plugin in every version: ADD, CHECK, STATUS, GC that keeps
// the pod, CHECK again, DEL twice.
func TestPrivilegedMain(t *testing.T) {
	t.Parallel()
	eachMain(t, func(t *testing.T, m mainPlugin, v string) {
		n := m.node(t)
		out, err := n.call(m.name, "ADD", nil, m.conf(v))
		if err != nil {
			t.Fatalf("ADD: %v", err)
		}
		got := decode(t, v, out)
		assertMain(t, m, v, got)
		s := step{m.name, m.conf(v)}
		verbs(t, n, s, v, got)
		for range 2 {
			c := m.conf(v)
			if atLeast(t, v, "0.4.0") {
				c["prevResult"] = got
			}
			out, err := n.call(m.name, "DEL", nil, c)
			assertSilent(t, m.name, "DEL", v, out, err)
		}
	})
}

// A GC that does not list an attachment ends it: an ADD then finds everything as
// the first one did.
func TestPrivilegedMainGC(t *testing.T) {
	t.Parallel()
	for _, m := range mainPlugins() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if m.need != nil {
				m.need(t)
			}
			n := m.node(t)
			gc := m.conf("1.1.0")
			gc["cni.dev/valid-attachments"] = []object{}
			for range 2 {
				if _, err := n.call(m.name, "ADD", nil, m.conf("1.1.0")); err != nil {
					t.Fatal(err)
				}
				out, err := n.call(m.name, "GC", nil, gc)
				assertSilent(t, m.name, "GC", "1.1.0", out, err)
			}
		})
	}
}

// assertMain holds the result to what its version looks like.
func assertMain(t *testing.T, m mainPlugin, v string, got object) {
	t.Helper()
	if got["cniVersion"] != v {
		t.Errorf("cniVersion is %v, want %s", got["cniVersion"], v)
	}
	assertAddressesOn(t, v, got, m.interfaces-1)
	if !atLeast(t, v, "0.3.0") {
		if got["interfaces"] != nil {
			t.Errorf("a result of %s has interfaces", v)
		}
		return
	}
	list, _ := got["interfaces"].([]any)
	if len(list) != m.interfaces {
		t.Fatalf("%d interfaces, want %d: %v", len(list), m.interfaces, list)
	}
	for i, x := range list {
		e := x.(map[string]any)
		sandbox, _ := e["sandbox"].(string)
		mac, _ := e["mac"].(string)
		if last := i == len(list)-1; (sandbox != "") != last || last && e["name"] != "eth0" || len(mac) != len("00:00:00:00:00:00") {
			t.Errorf("interface %d is %v", i, e)
		}
		if mtu, _ := e["mtu"].(float64); (mtu > 0) != atLeast(t, v, "1.1.0") {
			t.Errorf("interface %d has mtu %v in a result of %s", i, e["mtu"], v)
		}
	}
	dns, _ := got["dns"].(map[string]any)
	if fmt.Sprint(dns["nameservers"]) != "[10.1.0.1]" {
		t.Errorf("dns is %v", got["dns"])
	}
}

// A missing prevResult is error 7 of CHECK, a name that is taken error 103 of ADD,
// and missing IPAM error 7 where it cannot do without.
func TestPrivilegedMainRefusals(t *testing.T) {
	t.Parallel()
	for _, m := range mainPlugins() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if m.need != nil {
				m.need(t)
			}
			n := m.node(t)
			conf := m.conf("1.1.0")
			_, err := n.call(m.name, "CHECK", nil, conf)
			wantCode(t, "CHECK without prevResult", err, 7)
			noIPAM := m.conf("1.1.0")
			delete(noIPAM, "ipam")
			if !m.alone {
				_, err = n.call(m.name, "ADD", nil, noIPAM)
				wantCode(t, "ADD without ipam", err, 7)
			} else {
				noIPAM["cniVersion"] = "0.2.0"
				_, err = n.call(m.name, "ADD", nil, noIPAM)
				wantCode(t, "ADD without ipam in 0.2.0", err, 2)
			}
			if _, err := n.call(m.name, "ADD", nil, conf); err != nil {
				t.Fatal(err)
			}
			_, err = n.call(m.name, "ADD", map[string]string{"CNI_CONTAINERID": "other"}, conf)
			wantCode(t, "ADD of the same interface", err, 103)
		})
	}
}
