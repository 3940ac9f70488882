// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// bridges is a node whose uplink is a bridge, with a container of another suite behind a bridge of its own. Rules of the IP layer see
// what bridges get, and one drops what netfilter's connection table calls INVALID, as kube-proxy's does.
func bridges() parityCase {
	onDocker0 := func(_ *stage, fam e2etest.Family) string { return e2etest.At(e2etest.ContainerGateway(fam), 8080) }
	return parityCase{
		group: "bridges",
		build: func(s *stage) {
			require.BridgeNetfilter(s.T)
			e2etest.BridgeUplink(s.T, s.World, s.Client(), "br-lan")
			s.pods["container"] = &e2etest.Pod{
				Pod: e2etest.AddContainer(s.T, s.World, e2etest.ContainerRules[1].Script),
				IP4: netip.MustParseAddr("172.17.0.2"), IP6: netip.MustParseAddr("fd00:17::2"),
			}
			rt := s.runtime(e2etest.Net0())
			s.pod(rt, "web", onBoth(8080, anyIP)...)
			s.pod(rt, "sibling")
			e2etest.Serve(s.T, s.Client(), "client", ":8080")
		},
		atOnce: []behaviour{
			probe("a hostPort, from outside", "client", onNode(8080)),
			probe("out", "sibling", onClient(8080)),
			probe("a hostPort, from a container of another suite", "container", onNode(8080)),
			probe("a hostPort, from that container, by its gateway", "container", onDocker0),
			probe("out, from that container", "container", onClient(8080)),
		},
	}
}
