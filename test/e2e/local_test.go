// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// loopback and unspecified address of a family.
func (f family) loopback() netip.Addr {
	if f.suffix == "4" {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

// localAddrs are those by which a process of the node may ask for a hostPort.
func (w *world) localAddrs(fam family) map[string]netip.Addr {
	return map[string]netip.Addr{
		"loopback": fam.loopback(), "node": fam.node(w.Client()), "gateway": netip.MustParseAddr(fam.gw),
	}
}

// The node's own processes reach a hostPort by every address of the node, and
// see the address they asked for.
func TestPrivilegedLocalProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80))
	serve(t, p, "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for name, addr := range w.localAddrs(fam) {
			want := at(addr, 8080)
			c, err := dial(w.Node, proto, "", want)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if err := c.rounds(longTalk); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if c.answer.name != "web" || c.answer.peer.Addr().String() != fam.gw {
				t.Errorf("%s: answered by %s, which saw %s; want web, %s", name, c.answer.name, c.answer.peer, fam.gw)
			}
			if got := c.RemoteAddr().String(); got != want {
				t.Errorf("%s: the peer's name is %s, want %s", name, got, want)
			}
			_ = c.Close()
			refused(t, w.Node, proto, at(addr, 8081))
		}
		if got := ask(t, w.Node, proto, at(fam.pod(p), 80)); got.name != "web" {
			t.Errorf("the pod's own address: answered by %s", got.name)
		}
	})
}

// A connection to the unspecified address is one to the node itself.
func TestPrivilegedLocalUnspecified(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	serve(t, w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80)), "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		// With the family: without, Go tries both at once, each in a thread that is not the node's.
		if got := ask(t, w.Node, proto+fam.suffix, net.JoinHostPort(fam.any, "8080")); got.name != "web" {
			t.Errorf("answered by %s, want web", got.name)
		}
	})
}

// An IPv6 socket that talks IPv4 is no exception.
func TestPrivilegedLocalMappedSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	serve(t, w.add(w.runtime(net0()), "web", tcp(8080, 80), udp(8080, 80)), "web", ":80")
	to := &unix.SockaddrInet6{Port: 8080, Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}
	for proto, kind := range map[string]int{"tcp": unix.SOCK_STREAM, "udp": unix.SOCK_DGRAM} {
		t.Run(proto, func(t *testing.T) {
			var c net.Conn
			err := w.Node.Do(func() error {
				fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				f := os.NewFile(uintptr(fd), "mapped")
				defer f.Close()
				if err := unix.Connect(fd, to); err != nil {
					return err
				}
				c, err = net.FileConn(f)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			talkTo(t, c, "web")
		})
	}
}

// A datagram socket without a peer gets the answers from the address it sent to, whoever else it talks to.
func TestPrivilegedLocalUnconnected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	serve(t, w.add(rt, "web", udp(8080, 80)), "web", ":80")
	serve(t, w.add(rt, "dns", udp(5353, 53)), "dns", ":53")
	serve(t, w.Node, "node", ":9999")
	eachFamily(t, func(t *testing.T, fam family) {
		pc, err := w.Node.ListenPacket("udp"+fam.suffix, net.JoinHostPort(fam.any, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		for _, addr := range w.localAddrs(fam) {
			for port, name := range map[uint16]string{8080: "web", 5353: "dns", 9999: "node"} {
				to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port))
				if err := pc.SetDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				if _, err := pc.WriteTo([]byte("x"), to); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 512)
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					t.Errorf("%s: %v", to, err)
					continue
				}
				if from.String() != to.String() || !hasPrefix(buf[:n], name) {
					t.Errorf("asked %s, answered from %s: %q", to, from, buf[:n])
				}
			}
		}
	})
}

func hasPrefix(b []byte, name string) bool {
	return len(b) > len(name) && string(b[:len(name)]) == name
}

// Neither pods nor other hosts get the node's hostPorts by their own loopback
// addresses.
func TestPrivilegedLocalIsTheNodesOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	p := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
	serve(t, p, "web", ":80")
	other := w.add(rt, "other")
	for _, ns := range []*netlab.NS{other.NS, p.NS, w.Client().NS} {
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			refused(t, ns, proto, at(fam.loopback(), 8080))
		})
	}
}

// A hostPort on a loopback address is for the node's processes alone.
func TestPrivilegedLocalHostIPLoopback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fams := families()
	var ports []mapping
	for _, f := range fams {
		ports = append(ports, tcp(8080, 80).on(f.loopback()), udp(8080, 80).on(f.loopback()))
	}
	serve(t, w.add(w.runtime(net0()), "web", ports...), "web", ":80")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, w.Node, proto, at(fam.loopback(), 8080)); got.name != "web" {
			t.Errorf("answered by %s, want web", got.name)
		}
		refused(t, w.Node, proto, at(fam.node(w.Client()), 8080))
		refused(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
	})
}

// Sockets that are connected to a pod by a hostPort end when the port goes or
// gets another owner; who connects again gets the new one.
func TestPrivilegedLocalSocketsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	for _, how := range []string{"del", "takeover"} {
		t.Run(how, func(t *testing.T) {
			old := w.add(rt, "old"+how, tcp(8080, 80), udp(8080, 80))
			serve(t, old, "old", ":80")
			var talks []*talk
			for _, fam := range families() {
				for _, proto := range []string{"tcp", "udp"} {
					c, err := dial(w.Node, proto, "", at(fam.loopback(), 8080))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Close() })
					talks = append(talks, c)
				}
				direct, err := dial(w.Node, "tcp", "", at(fam.pod(old), 80))
				if err != nil {
					t.Fatal(err)
				}
				defer direct.Close()
				defer func() {
					if how == "takeover" && direct.say("still") != nil {
						t.Errorf("%s: a connection to the pod's own address ended too", fam.name)
					}
				}()
			}
			next := w.newPod(rt, "new"+how, tcp(8080, 80), udp(8080, 80))
			if how == "del" {
				old.mustDel()
			}
			next.mustAdd()
			serve(t, next, "new", ":80")
			for _, c := range talks {
				if err := ended(c); err != nil {
					t.Errorf("%s: %v", c.RemoteAddr(), err)
				}
			}
			eachTransport(t, func(t *testing.T, fam family, proto string) {
				if got := ask(t, w.Node, proto, at(fam.loopback(), 8080)); got.name != "new" {
					t.Errorf("answered by %s, want new", got.name)
				}
			})
			next.mustDel()
			if how == "takeover" {
				return
			}
		})
	}
}

// ended waits for what SOCK_DESTROY does to a socket.
func ended(c *talk) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	if errors.Is(err, unix.ECONNABORTED) {
		return nil
	}
	return fmt.Errorf("read: %w, want %w", err, unix.ECONNABORTED)
}

// CHECK misses a program for sockets, and "sluice status" shows it; the next published port puts it back.
func TestPrivilegedLocalCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	web := w.add(rt, "web", tcp(8080, 80))
	serve(t, web, "web", ":80")
	if s := w.status().Local; !s.Attached || s.Cgroup == "" {
		t.Errorf("status: %+v", s)
	}
	if err := web.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	removePins(w, "links/cg_connect4")
	if err := web.check(); err == nil || !strings.Contains(err.Error(), "sl_connect4") {
		t.Errorf("CHECK: %v, want a word about sl_connect4", err)
	}
	if s := w.status().Local; s.Attached || s.Reason == "" {
		t.Errorf("status: %+v", s)
	}
	w.add(rt, "next", tcp(8081, 80))
	if err := web.check(); err != nil {
		t.Errorf("CHECK after the next ADD: %v", err)
	}
	if got := ask(t, w.Node, "tcp", "127.0.0.1:8080"); got.name != "web" {
		t.Errorf("answered by %s", got.name)
	}
}

// Turned off, everything else works.
func TestPrivilegedLocalOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writeConfig(t, w.Node, `{"cgroupRoot": "off"}`)
	web := w.add(w.runtime(net0()), "web", tcp(8080, 80))
	serve(t, web, "web", ":80")
	ask(t, w.Client(), "tcp", at(families()[0].node(w.Client()), 8080))
	refused(t, w.Node, "tcp", "127.0.0.1:8080")
	if err := web.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if s := w.status().Local; s.Attached || !strings.Contains(s.Reason, "off") {
		t.Errorf("status: %+v", s)
	}
}

// A node whose cgroup is not there works, and says what it lacks.
func TestPrivilegedLocalNoCgroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writeConfig(t, w.Node, `{"cgroupRoot": "/sys/fs/cgroup/gone"}`)
	web := w.add(w.runtime(net0()), "web", tcp(8080, 80))
	serve(t, web, "web", ":80")
	ask(t, w.Client(), "tcp", at(families()[0].node(w.Client()), 8080))
	if err := web.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if s := w.status().Local; s.Attached || !strings.Contains(s.Reason, "/sys/fs/cgroup/gone") {
		t.Errorf("status: %+v", s)
	}
}

// Loopback addresses on the wire are dropped, even where somebody has set route_localnet.
func TestPrivilegedLoopbackFromTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.add(w.runtime(net0()), "web", tcp(8080, 80))
	for _, key := range []string{"all", "eth0", "cni0"} {
		if err := w.Node.WriteSysctl("net/ipv4/conf/"+key+"/route_localnet", "1"); err != nil {
			t.Fatal(err)
		}
	}
	serveFamily(t, w.Node, "4", "secret", "127.0.0.1:9000")
	for _, ns := range []*netlab.NS{w.Client().NS, pod.NS} {
		if err := ns.WriteSysctl("net/ipv4/conf/eth0/route_localnet", "1"); err != nil {
			t.Fatal(err)
		}
		via := netlab.IP4(w.Client().Uplink.Node).String()
		if ns == pod.NS {
			via = families()[0].gw
		}
		sh(t, ns, "ip addr flush dev lo")
		sh(t, ns, "ip route add 127.0.0.0/8 via "+via+" dev eth0")
		refused(t, ns, "tcp", "127.0.0.1:9000")
	}
	for _, reason := range []string{"loopback address on a wire", "pod sends to a loopback address"} {
		if w.drops(reason) == 0 {
			t.Errorf("no drop counted: %s", reason)
		}
	}
}
