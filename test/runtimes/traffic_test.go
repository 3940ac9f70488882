// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// nodeAddrs are the node's addresses as its client knows them, one of each family.
func (m *machine) nodeAddrs() []netip.Addr {
	up := m.Client().Uplink.Node
	return []netip.Addr{netlab.IP4(up), netlab.IP6(up)}
}

// fetch asks a server from a namespace, until it answers or the time is up: it may just have been started.
func fetch(ns *netlab.NS, addr string) (string, error) {
	late := time.Now().Add(netlab.Patient(5 * time.Second))
	for {
		text, err := fetchOnce(ns, addr)
		if err == nil || time.Now().After(late) {
			return text, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func fetchOnce(ns *netlab.NS, addr string) (string, error) {
	r, err := ns.HTTPClient(netlab.Patient(2 * time.Second)).Get("http://" + addr + "/")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", addr, r.Status)
	}
	text, err := io.ReadAll(r.Body)
	return strings.TrimSpace(string(text)), err
}

// published asks for a container's name at a hostPort, from the client by both families.
func (m *machine) published(port uint16, want string) {
	m.t.Helper()
	for _, a := range m.nodeAddrs() {
		got, err := fetch(m.Client().NS, netip.AddrPortFrom(a, port).String())
		if err != nil || got != want {
			m.t.Errorf("port %d of %s: answered %q, %v, want %q", port, a, got, err, want)
		}
	}
}

// publishedUDP is published for datagrams.
func (m *machine) publishedUDP(port uint16, want string) {
	m.t.Helper()
	for _, a := range m.nodeAddrs() {
		got, err := datagram(m.Client().NS, netip.AddrPortFrom(a, port).String())
		if err != nil || got != want {
			m.t.Errorf("udp port %d of %s: answered %q, %v, want %q", port, a, got, err, want)
		}
	}
}

// datagram asks until there is an answer or the time is up.
func datagram(ns *netlab.NS, addr string) (string, error) {
	c, err := ns.DialContext(context.Background(), "udp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	buf := make([]byte, 2048)
	for late := time.Now().Add(netlab.Patient(5 * time.Second)); ; {
		if _, err := c.Write([]byte("who?")); err != nil && time.Now().After(late) {
			return "", err
		}
		if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return "", err
		}
		n, err := c.Read(buf)
		if err == nil || time.Now().After(late) {
			return string(buf[:n]), err
		}
	}
}

// unpublished wants no answer there.
func (m *machine) unpublished(port uint16) {
	m.t.Helper()
	for _, a := range m.nodeAddrs() {
		if got, err := fetchOnce(m.Client().NS, netip.AddrPortFrom(a, port).String()); err == nil {
			m.t.Errorf("port %d of %s is answered by %q", port, a, got)
		}
	}
}

// clientPort is where the client tells who asks.
const clientPort = 9000

// serveClient has the client tell the address of who asks.
func (m *machine) serveClient() {
	m.t.Helper()
	for _, a := range m.Client().Uplink.Client {
		stop, err := m.Client().ServeHTTP(netip.AddrPortFrom(a.Addr(), clientPort).String(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			_, _ = io.WriteString(w, host)
		}))
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { _ = stop() })
	}
}

// masqueraded wants the client to see the node when a container asks it.
func (m *machine) masqueraded(ask func(url string) string) {
	m.t.Helper()
	for i, c := range []netip.Addr{netlab.IP4(m.Client().Uplink.Client), netlab.IP6(m.Client().Uplink.Client)} {
		got := ask("http://" + netip.AddrPortFrom(c, clientPort).String() + "/")
		if want := m.nodeAddrs()[i].String(); got != want {
			m.t.Errorf("the client saw %q, want the node's %s", got, want)
		}
	}
}
