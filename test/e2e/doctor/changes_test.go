// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// assertDoctorSays holds the doctor to saying something, or to not saying it.
func assertDoctorSays(t *testing.T, w *e2etest.World, text string, want bool) {
	t.Helper()
	if out := doctor(t, w); strings.Contains(out, text) != want {
		t.Errorf("the doctor says %q: %v, want %v:\n%s", text, !want, want, out)
	}
}

// Nothing watches the node between two verbs. The doctor names what has changed since, and what it says to do helps.
func TestPrivilegedDoctorNamesChanges(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, e2etest.TwoUplinks())
	rt := w.Runtime(e2etest.Net0())
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	sync := e2etest.Programs.Path("sluice") + " resync"
	assertDoctorSays(t, w, "no verb has seen", false)

	// A lease is renewed with another address.
	e2etest.RunScript(t, w, "ip addr del 192.0.2.1/24 dev eth0; ip addr add 192.0.2.9/24 dev eth0")
	assertDoctorSays(t, w, "192.0.2.9 of eth0 is an address of the node that no verb has seen yet", true)
	assertDoctorSays(t, w, "192.0.2.1 has left eth0", true)
	e2etest.MustRun(t, w.Node, sync)
	assertDoctorSays(t, w, "no verb has seen", false)
	if got := e2etest.Ask(t, w.Client(), "tcp4", "192.0.2.9:8080"); got.Server != "web" {
		t.Errorf("answered by %s", got.Server)
	}

	// A driver is loaded anew: the same name, another device.
	second := w.Clients[1]
	e2etest.RunScript(t, w, "ip link del eth1; ip link add eth1 type veth peer name eth0 netns "+second.ProcPath()+
		"; ip link set eth1 up; ip addr add 198.51.100.1/24 dev eth1; ip addr add 2001:db8:2::1/64 dev eth1 nodad")
	e2etest.MustRun(t, second, "ip link set eth0 up")
	e2etest.MustRun(t, second, "ip addr add 198.51.100.2/24 dev eth0")
	assertDoctorSays(t, w, "eth1 is an uplink that no verb has seen yet", true)
	e2etest.MustRun(t, w.Node, sync)
	assertDoctorSays(t, w, "no verb has seen", false)
	if got := e2etest.Ask(t, second, "tcp4", "198.51.100.1:8080"); got.Server != "web" {
		t.Errorf("answered by %s", got.Server)
	}

	// A network manager flushes the bridge.
	e2etest.MustRun(t, w.Node, "ip -4 addr flush dev cni0")
	assertDoctorSays(t, w, "10.1.0.1, by which pods send, is on no device any more", true)
	time.Sleep(netlab.Patient(250 * time.Millisecond)) // not the look that saw it there
	w.AddPod(rt, "next")
	assertDoctorSays(t, w, "by which pods send", false)
	if got := e2etest.Ask(t, w.Clients[0], "tcp4", "192.0.2.9:8080"); got.Server != "web" {
		t.Errorf("answered by %s", got.Server)
	}
}
