// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// A result that an old version cannot express is refused before anything is
// made: bridge without IPAM has no address, and 0.1.0 and 0.2.0 know nothing else.
func TestPrivilegedResultThatCannotBeExpressed(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0.1.0", "0.2.0"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			before, err := n.Node.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			_, err = n.call("bridge", "ADD", nil, object{"cniVersion": v, "name": "l2", "type": "bridge", "bridge": "cni0"})
			wantCode(t, "ADD", err, 2)
			after, err := n.Node.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if len(after.Grep("link cni0")) != len(before.Grep("link cni0")) {
				t.Error("the bridge was made all the same")
			}
		})
	}
}

// More than one address of a family needs 0.3.0, for ADD and for DEL.
func TestPrivilegedTwoAddressesOfOneFamily(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	two := object{"type": "host-local", "ranges": [][]object{{{"subnet": "10.1.0.0/16"}}, {{"subnet": "10.2.0.0/16"}}}}
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			_, err := n.call("host-local", "ADD", nil, object{"cniVersion": v, "name": "two", "type": "bridge", "ipam": two})
			if atLeast(t, v, "0.3.0") {
				if err != nil {
					t.Errorf("ADD: %v", err)
				}
				if _, err := n.call("host-local", "DEL", nil, object{"cniVersion": v, "name": "two", "type": "bridge", "ipam": two}); err != nil {
					t.Errorf("DEL: %v", err)
				}
				return
			}
			wantCode(t, "ADD", err, 7)
		})
	}
}

// The interface name being there already is an error, and stays as it was.
func TestPrivilegedInterfaceExists(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	conf := chain()[0].conf("1.1.0", nil)
	if _, err := n.call("bridge", "ADD", nil, conf); err != nil {
		t.Fatal(err)
	}
	_, err := n.call("bridge", "ADD", map[string]string{"CNI_CONTAINERID": "other"}, conf)
	wantCode(t, "ADD of the same interface", err, 103)
}

// CHECK and chained plugins need a prevResult, and say so.
func TestPrivilegedMissingPrevResult(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, s := range chain() {
		_, err := n.call(s.plugin, "CHECK", nil, s.conf("1.1.0", nil))
		wantCode(t, s.plugin+" CHECK", err, 7)
		if s.plugin == "bridge" {
			continue
		}
		_, err = n.call(s.plugin, "ADD", nil, s.conf("1.1.0", nil))
		wantCode(t, s.plugin+" ADD", err, 7)
	}
}

// A prevResult of another generation than the configuration is refused.
func TestPrivilegedForeignPrevResult(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	old := object{"cniVersion": "0.2.0", "ip4": object{"ip": "10.1.0.2/16"}}
	for _, s := range chain()[1:] {
		_, err := n.call(s.plugin, "ADD", nil, s.conf("1.1.0", old))
		wantCode(t, s.plugin, err, 6)
	}
}

// Missing variables are reported for each verb that needs them.
func TestMissingEnvironment(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"ADD":   {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
		"CHECK": {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
		"DEL":   {"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"},
		"GC":    {"CNI_PATH"},
	}
	for _, plugin := range testbin.Plugins() {
		for verb, missing := range tests {
			for _, name := range missing {
				env := map[string]string{"CNI_CONTAINERID": "x", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0"}
				env[name] = testbin.Unset
				_, err := programs.Run(testbin.Call{Plugin: plugin, Verb: verb, Env: env, Stdin: []byte(`{"cniVersion":"1.1.0","name":"n","type":"` + plugin + `"}`)})
				wantCode(t, plugin+" "+verb+" without "+name, err, 4)
			}
		}
	}
}
