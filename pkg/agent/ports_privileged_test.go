// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// record writes the record of a pod with a hostPort for all addresses of the node.
func record(t *testing.T, c *agentconf.Config, name string, proto, port int) {
	t.Helper()
	ref := attachments.ID{Network: "net0", ContainerID: name, IfName: "eth0"}
	section := map[string]any{"ports": []map[string]any{{"hostIP": netip.IPv4Unspecified(), "proto": proto, "port": port, "backend": "ebpf"}}}
	dir := attachments.Open(c.Paths.On(attachments.DefaultDir))
	if err := dir.Begin(ref, "/run/netns/"+name, "portmap", section); err != nil {
		t.Fatal(err)
	}
	if err := dir.Complete(ref, "portmap", section); err != nil {
		t.Fatal(err)
	}
}

// The agent reports hostPorts that a service of the node or one of its tunnels needs, also where these came later.
func TestPrivilegedPortProblem(t *testing.T) {
	lab := netlab.NewT(t)
	c := agentconf.Default()
	c.Routing, c.Paths.HostPrefix = agentconf.RoutingVXLAN, t.TempDir()
	look := func(want ...string) {
		t.Helper()
		var got string
		err := lab.Node.Do(func() (err error) { got, err = portProblem(c); return err })
		if err != nil || len(want) == 0 && got != "" {
			t.Errorf("%q, %v", got, err)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%q, want %q in it", got, w)
			}
		}
	}
	configure := func(policy nodeconf.Conflicts) {
		t.Helper()
		path := c.Paths.On(nodeconf.DefaultPath)
		if err := os.MkdirAll(path[:strings.LastIndex(path, "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, `{"hostPortConflicts": %q}`, policy), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look()
	record(t, c, "web", 6, 2222)
	look()
	var l net.Listener
	if err := lab.Node.Do(func() (err error) { l, err = net.Listen("tcp", ":2222"); return err }); err != nil {
		t.Fatal(err)
	}
	look("1 hostPorts", "0.0.0.0:2222/tcp")
	configure(nodeconf.ConflictsAllow)
	look()
	record(t, c, "overlay", 17, 8472)
	look("1 hostPorts", "0.0.0.0:8472/udp", c.VXLAN.Device)
	configure(nodeconf.ConflictsRefuse)
	look("2 hostPorts", "8472")
	_ = l.Close()
	c.Routing = agentconf.RoutingHostGW
	look()
}

// The ports of the mode's tunnels are in the file that portmap reads, and only those.
func TestKeepTunnels(t *testing.T) {
	t.Parallel()
	c := agentconf.Default()
	c.Paths.HostPrefix = t.TempDir()
	for _, tt := range []struct {
		mode agentconf.Routing
		want string
	}{
		{agentconf.RoutingVXLAN, "8472 flannel.1\n"}, {agentconf.RoutingWireGuard, "51820 sluice-wg\n51821 sluice-wg\n"}, {agentconf.RoutingHostGW, ""},
		{agentconf.RoutingNative, ""},
	} {
		c.Routing = tt.mode
		if err := keepTunnels(c); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(c.Paths.On(nodeports.TunnelsFile))
		if string(got) != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %q, %v, want %q", tt.mode, got, err, tt.want)
		}
	}
}
