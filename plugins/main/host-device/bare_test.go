// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"errors"
	"strings"
	"testing"
)

// A device without a hardware address (WireGuard, TUN) comes back from an ADD
// that failed as any other does: with its addresses and routes, and up.
func TestPrivilegedBareRestored(t *testing.T) {
	t.Parallel()
	e := newEnv(t, `"device":"tun0","ipam":{"type":"fake"}`)
	e.ip(e.node.NS, "tuntap add mode tun name tun0")
	e.ip(e.node.NS, "addr add 10.77.0.1/24 dev tun0")
	e.ip(e.node.NS, "addr add 10.78.0.1 peer 10.78.0.2 dev tun0")
	e.ip(e.node.NS, "addr add fd78::1 peer fd78::2 dev tun0 nodad")
	e.ip(e.node.NS, "link set tun0 up alias tunnel")
	e.ip(e.node.NS, "route add 203.0.113.0/24 via 10.77.0.9 dev tun0")
	e.ip(e.node.NS, "route add 203.0.112.0/24 via 10.78.0.2 dev tun0")
	e.ip(e.node.NS, "route add 203.0.111.0/24 nexthop via 10.77.0.8 dev tun0 nexthop via 10.77.0.9 dev tun0")
	e.ipam.err = errors.New("no address")
	if _, err := e.add("a"); err == nil {
		t.Fatal("ADD should fail")
	}
	got := e.ip(e.node.NS, "link show tun0") + e.ip(e.node.NS, "addr show tun0") + e.ip(e.node.NS, "route")
	for _, want := range []string{",UP", "10.77.0.1/24", "alias tunnel", "10.78.0.1 peer 10.78.0.2/32", "fd78::1 peer fd78::2/128", "203.0.113.0/24 via 10.77.0.9", "203.0.112.0/24 via 10.78.0.2", "nexthop via 10.77.0.8", "nexthop via 10.77.0.9"} {
		if !strings.Contains(got, want) {
			t.Errorf("tun0 has no %q after the failed ADD:\n%s", want, got)
		}
	}
}

// What names the device when the pod has cleared its alias is its kind and name.
func TestPrivilegedBareWithoutAlias(t *testing.T) {
	t.Parallel()
	e := newEnv(t, `"device":"tun0"`)
	e.ip(e.node.NS, "tuntap add mode tun name tun0")
	e.mustAdd("a")
	e.ip(e.pod.NS, "link set eth0 alias ''")
	e.mustDel("a")
	if _, there := e.links(e.node.NS)["tun0"]; !there {
		t.Errorf("tun0 has not come back: %v on the node, %v in the pod", e.links(e.node.NS), e.links(e.pod.NS))
	}
}
