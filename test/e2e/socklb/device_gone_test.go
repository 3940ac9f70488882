// SPDX-License-Identifier: Apache-2.0

package socklb

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// wantRefused asks for the hostPort 8080 as a process of the node, by every address of the node: the node itself refuses.
func wantRefused(t *testing.T, w *e2etest.World) {
	t.Helper()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, addr := range localAddrs(w, fam) {
			e2etest.AssertRefused(t, w.Node, proto, e2etest.At(addr, 8080))
		}
	})
}

// wantAnswers is the opposite of wantRefused.
func wantAnswers(t *testing.T, w *e2etest.World, server string) {
	t.Helper()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for name, addr := range localAddrs(w, fam) {
			if got := e2etest.Ask(t, w.Node, proto, e2etest.At(addr, 8080)); got.Server != server {
				t.Errorf("%s: answered by %s, want %s", name, got.Server, server)
			}
		}
	})
}

// A pod whose DEL never came has no device any more: its hostPort counts as missing. The next owner gets it, and so does the one
// that it is given back to.
func TestPrivilegedLocalDeviceGone(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web := func(name string) *e2etest.Pod {
		p := w.AddPod(rt, name, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
		e2etest.Serve(t, p, name, ":80")
		return p
	}
	gone := web("gone")
	wantAnswers(t, w, "gone")
	e2etest.MustRun(t, w.Node, "ip link del "+gone.HostVeth())
	wantRefused(t, w)

	web("first")
	wantAnswers(t, w, "first")
	second := web("second")
	wantAnswers(t, w, "second")
	e2etest.MustRun(t, w.Node, "ip link del "+second.HostVeth())
	wantRefused(t, w)
	second.MustDel()
	wantAnswers(t, w, "first")
}

// A host veth that another process takes into another network namespace carries nothing of the node.
func TestPrivilegedLocalDeviceMoved(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	p, other := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "other")
	e2etest.Serve(t, p, "web", ":80")
	wantAnswers(t, w, "web")
	e2etest.MustRun(t, w.Node, "ip link set "+p.HostVeth()+" netns "+other.NS.ProcPath())
	wantRefused(t, w)
}

// The map of devices is new with a load, as after an upgrade from a build without it. The pods that were there before are not taken
// for gone.
func TestPrivilegedLocalDeviceMapIsNew(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.RemovePins(w, "sl_pod_devices")
	wantAnswers(t, w, "web")
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), "sl_pod_devices") {
		t.Errorf("CHECK: %v, want a word about sl_pod_devices", err)
	}
	w.AddPod(rt, "next")
	wantAnswers(t, w, "web")
	if err := p.Check(); err != nil {
		t.Errorf("CHECK after the next ADD: %v", err)
	}
}
