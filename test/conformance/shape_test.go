// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/netip"
	"testing"
)

// assertShape holds bridge's result to what its version looks like.
func assertShape(t *testing.T, v string, got object) {
	t.Helper()
	if got["cniVersion"] != v {
		t.Errorf("cniVersion is %v, want %s", got["cniVersion"], v)
	}
	if atLeast(t, v, "0.3.0") {
		assertInterfaces(t, got)
	} else {
		for _, key := range []string{"interfaces", "ips", "routes"} {
			if got[key] != nil {
				t.Errorf("a result of %s has %q", v, key)
			}
		}
	}
	assertAddresses(t, v, got, true)
	dns, _ := got["dns"].(map[string]any)
	servers, _ := dns["nameservers"].([]any)
	if len(servers) != 1 || servers[0] != "10.1.0.1" {
		t.Errorf("dns is %v", got["dns"])
	}
}

// assertInterfaces wants the bridge, the host end and the pod's end, in this order.
func assertInterfaces(t *testing.T, got object) {
	t.Helper()
	list, _ := got["interfaces"].([]any)
	if len(list) != 3 {
		t.Fatalf("%d interfaces, want 3: %v", len(list), list)
	}
	for i, x := range list {
		m := x.(map[string]any)
		mac, _ := m["mac"].(string)
		if len(mac) != len("00:00:00:00:00:00") {
			t.Errorf("interface %d has MAC %q", i, mac)
		}
		if sandbox, _ := m["sandbox"].(string); (sandbox != "") != (i == 2) {
			t.Errorf("interface %d has sandbox %q", i, sandbox)
		}
	}
	first, last := list[0].(map[string]any)["name"], list[2].(map[string]any)["name"]
	if first != "cni0" || last != "eth0" {
		t.Errorf("interfaces run from %v to %v, want cni0 to eth0", first, last)
	}
}

// assertAddresses wants one address of each family, in the words of the version.
func assertAddresses(t *testing.T, v string, got object, indexed bool) {
	t.Helper()
	if indexed {
		assertAddressesOn(t, v, got, 2)
	} else {
		assertAddressesOn(t, v, got, -1)
	}
}

// assertAddressesOn wants them on the interface with that index, on none for -1.
func assertAddressesOn(t *testing.T, v string, got object, on int) {
	t.Helper()
	if !atLeast(t, v, "0.3.0") {
		for key, subnet := range map[string]string{"ip4": "10.1.0.0/16", "ip6": "fd00:10:1::/64"} {
			m, _ := got[key].(map[string]any)
			assertAddress(t, key, m["ip"], m["gateway"], subnet)
			if routes, _ := m["routes"].([]any); len(routes) != 1 {
				t.Errorf("%s has routes %v, want the default route of its family", key, m["routes"])
			}
		}
		return
	}
	list, _ := got["ips"].([]any)
	if len(list) != 2 {
		t.Fatalf("%d ips, want 2: %v", len(list), list)
	}
	for i, x := range list {
		m := x.(map[string]any)
		assertAddress(t, "ips", m["address"], m["gateway"], []string{"10.1.0.0/16", "fd00:10:1::/64"}[i])
		family := []string{"4", "6"}[i]
		if had, want := m["version"], !atLeast(t, v, "1.0.0"); (had != nil) != want || want && had != family {
			t.Errorf("ips[%d].version is %v in a result of %s", i, had, v)
		}
		if index, has := m["interface"]; has != (on >= 0) || has && index != float64(on) {
			t.Errorf("ips[%d].interface is %v", i, index)
		}
	}
	if routes, _ := got["routes"].([]any); len(routes) != 2 {
		t.Errorf("routes are %v, want both default routes", got["routes"])
	}
}

func assertAddress(t *testing.T, what string, address, gateway any, subnet string) {
	t.Helper()
	s := netip.MustParsePrefix(subnet)
	text, _ := address.(string)
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Masked() != s || p.Addr() == s.Addr() {
		t.Errorf("%s: address %v, want one of %s with its length", what, address, s)
	}
	if gateway != s.Addr().Next().String() {
		t.Errorf("%s: gateway %v, want %s", what, gateway, s.Addr().Next())
	}
}
