// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Both ends of the pair take larger segments of IPv4 where the network asks for it, also on netkit devices.
func TestPrivilegedBigTCPOfThePair(t *testing.T) {
	require.BigTCP(t)
	kinds := []string{rtnl.KindVeth}
	if require.HasNetkit(t) {
		kinds = append(kinds, rtnl.KindNetkit)
	}
	for _, kind := range kinds {
		for conf, want := range map[string]int{"": 64 << 10, `"bigTCP":false,`: 64 << 10, `"bigTCP":true,`: rtnl.BigSegment} {
			r := newRig(t)
			pod := r.node.PodT(t, "p1")
			a := call("1.1.0", "c1", "eth0", pod.Path, conf+`"deviceKind":"`+kind+`","bridge":"br0"`)
			res := r.mustAdd(a)
			r.within(pod.NS, func(h *rtnl.Handle) error {
				l, err := h.LinkByName("eth0")
				if err == nil && l.MaxSegmentIPv4 != want {
					t.Errorf("%s, %s: the pod's end has %d, want %d", kind, conf, l.MaxSegmentIPv4, want)
				}
				return err
			})
			r.host(func(h *rtnl.Handle) error {
				l, err := h.LinkByName(res.Interfaces[1].Name)
				if err == nil && l.MaxSegmentIPv4 != want {
					t.Errorf("%s, %s: the host veth has %d, want %d", kind, conf, l.MaxSegmentIPv4, want)
				}
				return err
			})
			if err := r.check(a, res); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			if err := r.del(a); err != nil {
				t.Errorf("DEL: %v", err)
			}
			r.mustBeClean(pod)
		}
	}
}
