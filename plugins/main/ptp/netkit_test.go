// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"net"
	"testing"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A pod whose network asks for netkit devices gets them, and veths with a reason in the record where the kernel has none. Either way the
// node reaches it in both families.
func TestPrivilegedDeviceKind(t *testing.T) {
	t.Parallel()
	want := rtnl.KindVeth
	if require.HasNetkit(t) {
		want = rtnl.KindNetkit
	}
	s := newStage(t)
	call := s.call().With("deviceKind", "netkit").With("mtu", 1400)
	res := s.MustAdd(call)
	for _, l := range []rtnl.Link{s.Link(s.Node.NS, res.Interfaces[0].Name), s.Link(s.pod.NS, "eth0")} {
		if l.Kind != want || l.MTU != 1400 || !l.Up {
			t.Errorf("%s is %+v, want %s", l.Name, l, want)
		}
	}
	for _, addr := range []string{"10.1.0.2", "fd00::2"} {
		l, err := s.pod.Listen("tcp", net.JoinHostPort(addr, "80"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := s.Node.DialContext(t.Context(), "tcp", net.JoinHostPort(addr, "80"))
		if err != nil {
			t.Fatalf("the node does not reach %s: %v", addr, err)
		}
		_ = c.Close()
	}
	if err := s.Check(call, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for range 2 {
		if err := s.Del(call); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	s.MustBeClean(s.pod)
}
