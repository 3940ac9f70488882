// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// The pod's interface is in a VRF, and the pod has the leased address elsewhere too, as pods with VRFs may: the lease is
// renewed by that interface.
func TestPrivilegedDHCPInVRF(t *testing.T) { // not parallel: sets environment variables for the server
	require.Link(t, "vrf")
	w := newDHCPWorld(t, "")
	var err error
	if w.rt, err = w.Node.CNI(netlab.CNIOptions{
		Path: []string{e2etest.Programs.Dir}, Stderr: w.Stderr,
		Conflist: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"bridge","bridge":%q,"ipam":{"type":"dhcp","daemonSocketPath":%q}},{"type":"vrf","vrfname":"blue"}]}`,
			dhcpBridge, w.socket()),
	}); err != nil {
		t.Fatal(err)
	}
	leases := w.kea(16)
	w.startDaemon()
	for _, twice := range []bool{false, true} {
		p := w.AddPod(w.rt, fmt.Sprintf("pod-%v", twice))
		if twice {
			e2etest.MustRun(t, p, "ip link add other type veth peer name wire")
			e2etest.MustRun(t, p, "ip addr add "+p.IP4.String()+"/24 dev other")
			e2etest.MustRun(t, p, "ip link set other up")
			e2etest.MustRun(t, p, "ip link set wire up")
		}
		renewals := func() int { return strings.Count(leases(), p.IP4.String()+",") }
		before := renewals()
		w.eventually("the lease is renewed", func() bool { return renewals() >= before+2 })
		e2etest.MustCheck(t, p)
		if got := e2etest.MustRun(t, p, "ip -4 -o addr show dev eth0"); !strings.Contains(got, p.IP4.String()) {
			t.Errorf("eth0 has %q", got)
		}
		p.MustDel()
	}
	if out := w.daemon.Out.String(); strings.Contains(out, "lease not renewed") {
		t.Errorf("the daemon could not ask the server that gave the lease:\n%s", out)
	}
	w.daemon.Signal(unix.SIGTERM)
}
