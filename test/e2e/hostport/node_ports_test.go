// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/nodeports"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

const takes = "takes what a socket of the node waits for"

// wait opens a socket of the node that waits at an address, until the test ends.
func wait(t *testing.T, w *e2etest.World, proto, addr string) {
	t.Helper()
	var c interface{ Close() error }
	var err error
	if strings.HasPrefix(proto, "udp") {
		c, err = w.Node.ListenPacket(proto, addr)
	} else {
		c, err = w.Node.Listen(proto, addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
}

// mapping publishes a port for the pod's port 80.
func mapping(proto string, port int) e2etest.PortMapping {
	if proto == "udp" {
		return e2etest.UDP(port, 80)
	}
	return e2etest.TCP(port, 80)
}

// A hostPort on which a socket of the node waits is refused, warned of or left alone, as the node's configuration says.
func TestPrivilegedNodePortConflicts(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	for _, proto := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
		wait(t, w, proto, ":2222")
	}
	for _, backend := range []string{"ebpf", "nftables"} {
		for _, proto := range []string{"tcp", "udp"} {
			name := backend + proto
			w.Configure(fmt.Sprintf(`{"backend": %q, "hostPortConflicts": "refuse"}`, backend))
			refused := w.NewPod(rt, name+"refused", mapping(proto, 2223), mapping(proto, 2222))
			err := refused.TryAdd()
			if err == nil || !strings.Contains(err.Error(), "runtimeConfig.portMappings[1].hostPort 2222") || !strings.Contains(err.Error(), "hostPortConflicts") {
				t.Errorf("%s, refuse: %v, want an error of the key and its value", name, err)
			}
			w.Configure(fmt.Sprintf(`{"backend": %q}`, backend))
			before := strings.Count(w.Stderr.String(), takes)
			w.AddPod(rt, name+"warned", mapping(proto, 2222)).MustDel()
			if n := strings.Count(w.Stderr.String(), takes) - before; n != 2 { // one of each family
				t.Errorf("%s, default: %d warnings, want 2", name, n)
			}
			w.Configure(fmt.Sprintf(`{"backend": %q, "hostPortConflicts": "allow"}`, backend))
			before = strings.Count(w.Stderr.String(), takes)
			w.AddPod(rt, name+"allowed", mapping(proto, 2222)).MustDel()
			w.Configure(fmt.Sprintf(`{"backend": %q}`, backend))
			w.AddPod(rt, name+"free", mapping(proto, 2223)).MustDel()
			if n := strings.Count(w.Stderr.String(), takes) - before; n != 0 {
				t.Errorf("%s: %d warnings with allow and of a free port", name, n)
			}
		}
	}
}

// A socket and a hostPort conflict if they have an address in common.
func TestPrivilegedNodePortConflictAddresses(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	w.Configure(`{"hostPortConflicts": "refuse"}`)
	fams := e2etest.Families()
	node := func(i int) netip.Addr { return fams[i].Node(w.Client()) }
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	cases := []struct {
		socket, network string
		hostIP          netip.Addr
		conflict        bool
	}{
		{any4.String(), "4", any4, true},
		{any4.String(), "4", any6, false},
		{any4.String(), "4", node(0), true},
		{any6.String(), "6", any6, true},
		{any6.String(), "6", any4, false},
		{any6.String(), "6", node(1), true},
		{any6.String(), "", any4, true}, // both families
		{any6.String(), "", node(0), true},
		{node(0).String(), "4", any4, true},
		{node(0).String(), "4", node(0), true},
		{node(0).String(), "4", fams[0].Loopback(), false},
		{node(0).String(), "4", netip.MustParseAddr("203.0.113.9"), false},
		{node(1).String(), "6", any6, true},
		{node(1).String(), "6", fams[1].Loopback(), false},
		{"127.0.0.1", "4", any4, true}, // for processes of the node
		{"127.0.0.1", "4", node(0), false},
		{"::1", "6", any6, true},
		{"::1", "6", any4, false},
	}
	for i, c := range cases {
		for _, proto := range []string{"tcp", "udp"} {
			port := 3000 + i
			wait(t, w, proto+c.network, net.JoinHostPort(c.socket, fmt.Sprint(port)))
			p := w.NewPod(rt, fmt.Sprintf("p%d%s", i, proto), mapping(proto, port).OnAddress(c.hostIP))
			err := p.TryAdd()
			if refused := err != nil && strings.Contains(err.Error(), "hostPortConflicts"); refused != c.conflict {
				t.Errorf("%s socket at %s, hostIP %s: %v", proto+c.network, c.socket, c.hostIP, err)
			}
			if err == nil {
				p.MustDel()
			}
		}
	}
}

// A client of the node that has a port is nobody who waits there.
func TestPrivilegedNodePortClients(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"hostPortConflicts": "refuse"}`)
	e2etest.Serve(t, w.Client(), "client", ":9000")
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			c, err := e2etest.Dial(w.Node, proto+fam.Suffix, e2etest.At(fam.Node(w.Client()), 4000), e2etest.At(fam.Client(w.Client()), 9000))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
	}
	w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(4000, 80), e2etest.UDP(4000, 80))
}

// No pod gets the UDP port of a tunnel of the node agent, whatever the configuration says.
func TestPrivilegedNodePortTunnel(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	w.Configure(`{"hostPortConflicts": "allow"}`)
	w.DoOnNode(func() error {
		if err := os.MkdirAll("/run/sluice", 0o700); err != nil {
			return err
		}
		return os.WriteFile(nodeports.TunnelsFile, nodeports.FormatTunnels([]nodeports.Tunnel{{Port: 8472, Device: "flannel.1"}}), 0o600)
	})
	for i, hostIP := range []netip.Addr{{}, netip.IPv4Unspecified(), e2etest.Families()[1].Node(w.Client())} {
		m := e2etest.UDP(8472, 80)
		if hostIP.IsValid() {
			m = m.OnAddress(hostIP)
		}
		err := w.NewPod(rt, fmt.Sprint("taker", i), m).TryAdd()
		if err == nil || !strings.Contains(err.Error(), "runtimeConfig.portMappings[0].hostPort 8472") || !strings.Contains(err.Error(), "flannel.1") {
			t.Errorf("hostIP %s: %v, want an error of the key, its value and the device", hostIP, err)
		}
	}
	w.AddPod(rt, "other", e2etest.TCP(8472, 80), e2etest.UDP(8473, 80), e2etest.UDP(8472, 80).OnAddress(e2etest.Families()[0].Loopback()))
}
