// SPDX-License-Identifier: Apache-2.0

package socklb

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

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// localAddrs are those by which a process of the node may ask for a hostPort.
func localAddrs(w *e2etest.World, fam e2etest.Family) map[string]netip.Addr {
	return map[string]netip.Addr{
		"loopback": fam.Loopback(), "node": fam.Node(w.Client()), "gateway": netip.MustParseAddr(fam.Gateway),
	}
}

// The node's own processes reach a hostPort by every address of the node, and
// see the address they asked for.
func TestPrivilegedLocalProcess(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for name, addr := range localAddrs(w, fam) {
			want := e2etest.At(addr, 8080)
			c, err := e2etest.Dial(w.Node, proto, "", want)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if err := c.SendRounds(e2etest.LongTalk); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if c.Answer.Server != "web" || c.Answer.Peer.Addr().String() != fam.Gateway {
				t.Errorf("%s: answered by %s, which saw %s; want web, %s", name, c.Answer.Server, c.Answer.Peer, fam.Gateway)
			}
			if got := c.RemoteAddr().String(); got != want {
				t.Errorf("%s: the peer's name is %s, want %s", name, got, want)
			}
			_ = c.Close()
			e2etest.AssertNoAnswer(t, w.Node, proto, e2etest.At(addr, 8081))
		}
		if got := e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Pod(p), 80)); got.Server != "web" {
			t.Errorf("the pod's own address: answered by %s", got.Server)
		}
	})
}

// A connection to the unspecified address is one to the node itself.
func TestPrivilegedLocalUnspecified(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.Serve(t, w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		// With the family: without, Go tries both at once, each in a thread that is not the node's.
		if got := e2etest.Ask(t, w.Node, proto+fam.Suffix, net.JoinHostPort(fam.Any, "8080")); got.Server != "web" {
			t.Errorf("answered by %s, want web", got.Server)
		}
	})
}

// An IPv6 socket that talks IPv4 is no exception.
func TestPrivilegedLocalMappedSocket(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.Serve(t, w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), "web", ":80")
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
			e2etest.AssertTalk(t, c, "web")
		})
	}
}

// A datagram socket without a peer gets the answers from the address it sent to, whatever else it talks to.
func TestPrivilegedLocalUnconnected(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	e2etest.Serve(t, w.AddPod(rt, "web", e2etest.UDP(8080, 80)), "web", ":80")
	e2etest.Serve(t, w.AddPod(rt, "dns", e2etest.UDP(5353, 53)), "dns", ":53")
	e2etest.Serve(t, w.Node, "node", ":9999")
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		pc, err := w.Node.ListenPacket("udp"+fam.Suffix, net.JoinHostPort(fam.Any, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		for _, addr := range localAddrs(w, fam) {
			for port, name := range map[uint16]string{8080: "web", 5353: "dns", 9999: "node"} {
				to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port))
				if err := pc.SetDeadline(time.Now().Add(e2etest.AnswerTimeout)); err != nil {
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
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	other := w.AddPod(rt, "other")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		var checks []func()
		for _, ns := range []*netlab.NS{other.NS, p.NS, w.Client().NS} {
			checks = append(checks, func() { e2etest.AssertNoAnswer(t, ns, proto, e2etest.At(fam.Loopback(), 8080)) })
		}
		e2etest.AtOnce(checks...)
	})
}

// A hostPort on a loopback address is for the node's processes alone.
func TestPrivilegedLocalHostIPLoopback(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	fams := e2etest.Families()
	var ports []e2etest.PortMapping
	for _, f := range fams {
		ports = append(ports, e2etest.TCP(8080, 80).OnAddress(f.Loopback()), e2etest.UDP(8080, 80).OnAddress(f.Loopback()))
	}
	e2etest.Serve(t, w.AddPod(w.Runtime(e2etest.Net0()), "web", ports...), "web", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Loopback(), 8080)); got.Server != "web" {
			t.Errorf("answered by %s, want web", got.Server)
		}
		e2etest.AtOnce(
			func() { e2etest.AssertNoAnswer(t, w.Node, proto, e2etest.At(fam.Node(w.Client()), 8080)) },
			func() { e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080)) },
		)
	})
}

// Sockets that are connected to a pod by a hostPort end when the port goes or
// gets another owner; who connects again gets the new one.
func TestPrivilegedLocalSocketsEnd(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	for _, how := range []string{"del", "takeover"} {
		t.Run(how, func(t *testing.T) {
			old := w.AddPod(rt, "old"+how, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			e2etest.Serve(t, old, "old", ":80")
			var talks []*e2etest.Talk
			for _, fam := range e2etest.Families() {
				for _, proto := range []string{"tcp", "udp"} {
					c, err := e2etest.Dial(w.Node, proto, "", e2etest.At(fam.Loopback(), 8080))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Close() })
					talks = append(talks, c)
				}
				direct, err := e2etest.Dial(w.Node, "tcp", "", e2etest.At(fam.Pod(old), 80))
				if err != nil {
					t.Fatal(err)
				}
				defer direct.Close()
				defer func() {
					if how == "takeover" && direct.Send("still") != nil {
						t.Errorf("%s: a connection to the pod's own address ended too", fam.Name)
					}
				}()
			}
			next := w.NewPod(rt, "new"+how, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			if how == "del" {
				old.MustDel()
			}
			next.MustAdd()
			e2etest.Serve(t, next, "new", ":80")
			for _, c := range talks {
				if err := ended(c); err != nil {
					t.Errorf("%s: %v", c.RemoteAddr(), err)
				}
			}
			e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
				if got := e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Loopback(), 8080)); got.Server != "new" {
					t.Errorf("answered by %s, want new", got.Server)
				}
			})
			next.MustDel()
			if how == "takeover" {
				return
			}
		})
	}
}

// ended waits for what SOCK_DESTROY does to a socket.
func ended(c *e2etest.Talk) error {
	if err := c.SetDeadline(time.Now().Add(e2etest.AnswerTimeout)); err != nil {
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
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	if s := w.Status().Local; !s.Attached || s.Cgroup == "" {
		t.Errorf("status: %+v", s)
	}
	if err := web.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	e2etest.RemovePins(w, "links/cg_connect4")
	if err := web.Check(); err == nil || !strings.Contains(err.Error(), "sl_connect4") {
		t.Errorf("CHECK: %v, want a word about sl_connect4", err)
	}
	if s := w.Status().Local; s.Attached || s.Reason == "" {
		t.Errorf("status: %+v", s)
	}
	w.AddPod(rt, "next", e2etest.TCP(8081, 80))
	if err := web.Check(); err != nil {
		t.Errorf("CHECK after the next ADD: %v", err)
	}
	if got := e2etest.Ask(t, w.Node, "tcp", "127.0.0.1:8080"); got.Server != "web" {
		t.Errorf("answered by %s", got.Server)
	}
}

// Turned off, everything else works.
func TestPrivilegedLocalOff(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"cgroupRoot": "off"}`)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Ask(t, w.Client(), "tcp", e2etest.At(e2etest.Families()[0].Node(w.Client()), 8080))
	e2etest.AssertNoAnswer(t, w.Node, "tcp", "127.0.0.1:8080")
	if err := web.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if s := w.Status().Local; s.Attached || !strings.Contains(s.Reason, "off") {
		t.Errorf("status: %+v", s)
	}
}

// A node whose cgroup is not there works, and says what it lacks.
func TestPrivilegedLocalNoCgroup(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"cgroupRoot": "/sys/fs/cgroup/gone"}`)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Ask(t, w.Client(), "tcp", e2etest.At(e2etest.Families()[0].Node(w.Client()), 8080))
	if err := web.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if s := w.Status().Local; s.Attached || !strings.Contains(s.Reason, "/sys/fs/cgroup/gone") {
		t.Errorf("status: %+v", s)
	}
}

// Loopback addresses on the wire are dropped, even where route_localnet is set.
func TestPrivilegedLoopbackFromTheWire(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	pod := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80))
	for _, key := range []string{"all", "eth0", "cni0"} {
		if err := w.Node.WriteSysctl("net/ipv4/conf/"+key+"/route_localnet", "1"); err != nil {
			t.Fatal(err)
		}
	}
	e2etest.ServeFamily(t, w.Node, "4", "secret", "127.0.0.1:9000")
	for _, ns := range []*netlab.NS{w.Client().NS, pod.NS} {
		if err := ns.WriteSysctl("net/ipv4/conf/eth0/route_localnet", "1"); err != nil {
			t.Fatal(err)
		}
		via := netlab.IP4(w.Client().Uplink.Node).String()
		if ns == pod.NS {
			via = e2etest.Families()[0].Gateway
		}
		e2etest.MustRun(t, ns, "ip addr flush dev lo")
		e2etest.MustRun(t, ns, "ip route add 127.0.0.0/8 via "+via+" dev eth0")
		e2etest.AssertNoAnswer(t, ns, "tcp", "127.0.0.1:9000")
	}
	for _, reason := range []string{"loopback address on a wire", "pod sends to a loopback address"} {
		if w.Drops(reason) == 0 {
			t.Errorf("no drop counted: %s", reason)
		}
	}
}
