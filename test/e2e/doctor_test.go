// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// says holds the doctor to saying something, or to not saying it.
func says(t *testing.T, w *world, text string, want bool) {
	t.Helper()
	if out := doctor(t, w); strings.Contains(out, text) != want {
		t.Errorf("the doctor says %q: %v, want %v:\n%s", text, !want, want, out)
	}
}

// Nobody watches the node between two verbs: what has changed meanwhile the doctor names, and what it says to do helps.
func TestPrivilegedDoctorNamesChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoUplinks())
	rt := w.runtime(net0())
	web := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
	serve(t, web, "web", ":80")
	sync := programs.Path("sluice") + " resync"
	says(t, w, "no verb has seen", false)

	// A lease is renewed with another address.
	shell(t, w, "ip addr del 192.0.2.1/24 dev eth0; ip addr add 192.0.2.9/24 dev eth0")
	says(t, w, "192.0.2.9 of eth0 is an address of the node that no verb has seen yet", true)
	says(t, w, "192.0.2.1 has left eth0", true)
	sh(t, w.Node, sync)
	says(t, w, "no verb has seen", false)
	if got := ask(t, w.Client(), "tcp4", "192.0.2.9:8080"); got.name != "web" {
		t.Errorf("answered by %s", got.name)
	}

	// A driver is loaded anew: the same name, another device.
	second := w.Clients[1]
	shell(t, w, "ip link del eth1; ip link add eth1 type veth peer name eth0 netns "+second.ProcPath()+
		"; ip link set eth1 up; ip addr add 198.51.100.1/24 dev eth1; ip addr add 2001:db8:2::1/64 dev eth1 nodad")
	sh(t, second, "ip link set eth0 up")
	sh(t, second, "ip addr add 198.51.100.2/24 dev eth0")
	says(t, w, "eth1 is an uplink that no verb has seen yet", true)
	sh(t, w.Node, sync)
	says(t, w, "no verb has seen", false)
	if got := ask(t, second, "tcp4", "198.51.100.1:8080"); got.name != "web" {
		t.Errorf("answered by %s", got.name)
	}

	// A network manager flushes the bridge.
	sh(t, w.Node, "ip -4 addr flush dev cni0")
	says(t, w, "10.1.0.1, by which pods send, is on no device any more", true)
	time.Sleep(netlab.Patient(250 * time.Millisecond)) // not the look that saw it there
	w.add(rt, "next")
	says(t, w, "by which pods send", false)
	if got := ask(t, w.Clients[0], "tcp4", "192.0.2.9:8080"); got.name != "web" {
		t.Errorf("answered by %s", got.name)
	}
}
