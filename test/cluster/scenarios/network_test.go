// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/test/cluster/kube"
)

// Pods reach each other on one node and over nodes, by both families and protocols, and see each other's own addresses.
func TestPrivilegedPodsOfAllNodes(t *testing.T) {
	s := open(t)
	pods := s.create(podSpec("a", s.Node[0].Name, nil), podSpec("b", s.Node[0].Name, nil), podSpec("c", s.Node[1].Name, nil))
	for _, one := range pods {
		for _, other := range pods {
			for family, addr := range other.ips {
				s.reaches(one.name, s.asPod(one), addr, protocols, other.name)
				if one.name == other.name {
					continue
				}
				for protocol, port := range protocols {
					got, err := s.asPod(one)(protocol, "clientip", addr, port)
					if seen, perr := netip.ParseAddrPort(got); err != nil || perr != nil || seen.Addr().Unmap() != one.ips[family] {
						t.Errorf("%s sees %s by %s as %q, want %s: %v", other.name, one.name, protocol, got, one.ips[family], err)
					}
				}
			}
		}
		for i := range s.Node {
			for _, addr := range one.ips {
				s.reaches(s.Node[i].Name, s.asMachine(s.Node[i]), addr, protocols, one.name)
			}
		}
	}
}

// Pods and nodes reach a Service by its addresses, and so all pods behind it, and the API server.
func TestPrivilegedService(t *testing.T) {
	s := open(t)
	behind := map[string]string{"app": "web"}
	names := []string{"w0", "w1"}
	pods := s.create(podSpec(names[0], s.Node[0].Name, behind), podSpec(names[1], s.Node[1].Name, behind), podSpec("asks", s.Node[0].Name, nil))
	svc := s.service("web", "web", nil)
	ports := map[string]int{"http": 80, "udp": 81}
	for _, ip := range svc.Spec.ClusterIPs {
		addr := netip.MustParseAddr(ip)
		for _, p := range pods {
			s.served(s.asPod(p), addr, 80, names)
			s.reaches(p.name, s.asPod(p), addr, ports, names...)
		}
		for i := range s.Node {
			s.served(s.asMachine(s.Node[i]), addr, 80, names)
			s.reaches(s.Node[i].Name, s.asMachine(s.Node[i]), addr, ports, names...)
		}
	}
	for _, p := range pods {
		if _, err := s.asPod(p)("http", "", kube.Services[0].Addr().Next(), 443); err != nil && !strings.Contains(err.Error(), "400") {
			t.Errorf("%s does not reach the API server: %v", p.name, err)
		}
	}
}

// An endpoint of a Service is deleted while a pod goes on asking from one socket: once kube-proxy leads new clients to the other endpoint, so
// does it lead the datagrams of that socket, and none gets lost after that.
func TestPrivilegedEndpointGoes(t *testing.T) {
	s := open(t)
	behind := map[string]string{"app": "two"}
	names := []string{"e0", "e1"}
	pods := s.create(podSpec(names[0], s.Node[0].Name, behind), podSpec(names[1], s.Node[1].Name, behind), podSpec("asks", s.Node[0].Name, nil))
	svc := s.service("two", "two", nil)
	asks := pods[2]
	dial, err := s.PodDialer(t.Context(), 0, asks.ips[0])
	s.must(err)
	type talk struct {
		vip    netip.Addr
		conn   net.Conn
		answer string
	}
	var talks []*talk
	for _, ip := range svc.Spec.ClusterIPs {
		vip := netip.MustParseAddr(ip)
		s.served(s.asPod(asks), vip, 80, names)
		s.reaches("asks", s.asPod(asks), vip, map[string]int{"udp": 81}, names...)
		for range 4 {
			conn, err := dial(t.Context(), "udp", net.JoinHostPort(ip, "81"))
			s.must(err)
			defer conn.Close()
			talks = append(talks, &talk{vip: vip, conn: conn})
		}
	}
	ask := func(tk *talk) error {
		buf := make([]byte, 256)
		_ = tk.conn.SetDeadline(time.Now().Add(netlab.Patient(time.Second)))
		if _, err := tk.conn.Write([]byte("hostname")); err != nil {
			return err
		}
		n, err := tk.conn.Read(buf)
		tk.answer = string(buf[:n])
		return err
	}
	for learned := time.Now().Add(3 * time.Second); time.Now().Before(learned); time.Sleep(50 * time.Millisecond) {
		for _, tk := range talks {
			s.must(ask(tk))
		}
	}
	gone := talks[0].answer
	stays := names[0]
	if gone == stays {
		stays = names[1]
	}
	none := int64(0)
	s.must(s.client.CoreV1().Pods(s.ns).Delete(t.Context(), gone, metav1.DeleteOptions{GracePeriodSeconds: &none}))
	s.until("the sockets are answered by "+stays, func(context.Context) error {
		for _, tk := range talks {
			if err := ask(tk); err != nil || tk.answer != stays {
				return fmt.Errorf("%s answers %q: %w", tk.vip, tk.answer, errors.Join(err, errStays))
			}
		}
		return nil
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, tk := range talks {
			if err := ask(tk); err != nil || tk.answer != stays {
				t.Fatalf("%s answers %q: %v", tk.vip, tk.answer, err)
			}
		}
	}
}

// served waits until a Service leads to each of its pods.
func (s *suite) served(ask from, addr netip.Addr, port int, names []string) {
	s.t.Helper()
	missing := map[string]bool{}
	for _, n := range names {
		missing[n] = true
	}
	s.until(fmt.Sprintf("%s leads to %v", addr, names), func(context.Context) error {
		for range 10 * len(names) {
			got, err := ask("http", "hostname", addr, port)
			if err != nil {
				return err
			}
			if delete(missing, got); len(missing) == 0 {
				return nil
			}
		}
		return fmt.Errorf("it does not lead to %v", missing)
	})
}

// A NodePort leads to every pod from outside at each node, to the node's own where that is asked for, which then see the client's address.
func TestPrivilegedNodePort(t *testing.T) {
	s := open(t)
	behind := map[string]string{"app": "web"}
	s.create(podSpec("w0", s.Node[0].Name, behind), podSpec("w1", s.Node[1].Name, behind))
	both := s.service("both", "web", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	local := s.service("local", "web", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	})
	outside := s.asMachine(s.Outside)
	for i := range s.Node {
		for family, addr := range kube.NodeAddrs(i) {
			s.served(outside, addr, int(both.Spec.Ports[0].NodePort), []string{"w0", "w1"})
			s.reaches("outside", outside, addr, map[string]int{"udp": int(both.Spec.Ports[1].NodePort)}, "w0", "w1")
			if i > 1 {
				continue
			}
			name := fmt.Sprint("w", i)
			s.served(outside, addr, int(local.Spec.Ports[0].NodePort), []string{name})
			got, err := outside("http", "clientip", addr, int(local.Spec.Ports[0].NodePort))
			if seen, perr := netip.ParseAddrPort(got); err != nil || perr != nil || seen.Addr().Unmap() != kube.OutsideAddrs()[family] {
				t.Errorf("%s sees the outside as %q, want %s: %v", name, got, kube.OutsideAddrs()[family], err)
			}
		}
	}
}

// A hostPort is reached from outside, from the own node and its loopback address, from another node, and from pods of both, until its pod is deleted.
func TestPrivilegedHostPort(t *testing.T) {
	s := open(t)
	ports := map[string]int{"http": 18080, "udp": 18081}
	published := s.pod("published", 1, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 18080},
		corev1.ContainerPort{ContainerPort: udpPort, HostPort: 18081, Protocol: corev1.ProtocolUDP})
	near, far := s.pod("near", 1), s.pod("far", 0)
	for _, addr := range kube.NodeAddrs(1) {
		for who, ask := range map[string]from{
			"outside": s.asMachine(s.Outside), "its node": s.asMachine(s.Node[1]), "another node": s.asMachine(s.Node[0]),
			"a pod beside it": s.asPod(near), "a pod of another node": s.asPod(far), "itself": s.asPod(published),
		} {
			s.reaches(who, ask, addr, ports, "published")
		}
	}
	s.reaches("its node by loopback", s.asMachine(s.Node[1]), netip.MustParseAddr("127.0.0.1"), ports, "published")
	got, err := s.asMachine(s.Outside)("http", "clientip", kube.NodeAddrs(1)[0], 18080)
	if seen, perr := netip.ParseAddrPort(got); err != nil || perr != nil || seen.Addr().Unmap() != kube.OutsideAddrs()[0] {
		t.Errorf("the pod sees the outside as %q: %v", got, err)
	}
	s.delete(published)
	for protocol, port := range ports {
		if got, err := s.asMachine(s.Outside)(protocol, "hostname", kube.NodeAddrs(1)[0], port); err == nil {
			t.Errorf("the port of a deleted pod answers %q by %s", got, protocol)
		}
	}
}

// What a pod asks of the outside comes from its node's address, by both families and protocols.
func TestPrivilegedMasquerade(t *testing.T) {
	s := open(t)
	stop := s.serveOutside(9000)
	defer stop()
	pods := s.create(podSpec("a", s.Node[0].Name, nil), podSpec("b", s.Node[1].Name, nil))
	for _, p := range pods {
		for family, addr := range kube.OutsideAddrs() {
			for _, protocol := range []string{"http", "udp"} {
				got, err := s.asPod(p)(protocol, "clientip", addr, 9000)
				if want := kube.NodeAddrs(p.node)[family]; err != nil || got != want.String() {
					t.Errorf("the outside sees %s by %s as %q, want %s: %v", p.name, protocol, got, want, err)
				}
			}
		}
	}
}

// serveOutside tells each client of the outside machine by which address it comes.
func (s *suite) serveOutside(port int) (stop func()) {
	s.t.Helper()
	ns, err := kube.Netns(s.Outside)
	s.must(err)
	defer ns.Close()
	var tcp net.Listener
	var udp net.PacketConn
	s.must(ns.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", fmt.Sprint(":", port)); err == nil {
			udp, err = net.ListenPacket("udp", fmt.Sprint(":", port))
		}
		return err
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, netip.MustParseAddrPort(r.RemoteAddr).Addr().Unmap().String())
	})}
	go func() { _ = server.Serve(tcp) }()
	go func() {
		for buf := make([]byte, 2048); ; {
			_, peer, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo([]byte(netip.MustParseAddrPort(peer.String()).Addr().Unmap().String()), peer)
		}
	}()
	return func() { _, _ = server.Close(), udp.Close() }
}
