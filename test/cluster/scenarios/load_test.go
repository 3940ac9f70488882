// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/load"
)

// heavy is the load that an upgrade must not harm. Two cores are busy with it.
var heavy = flag.Bool("heavy", false, "1,000 connections that stay, and 100 new ones a second")

// atWork has two pods under load: one from outside, by a hostPort and by a Service at a node that has none of its pods, and one that asks
// it, also by its Service, and the outside.
type atWork struct {
	*suite
	run *load.Run
}

const outsidePort = 9100

// underLoad starts the load and waits until all of it is there.
func underLoad(s *suite) *atWork {
	s.t.Helper()
	behind := map[string]string{"app": "loaded"}
	last := len(s.Node) - 1
	pods := s.create(podSpec("loaded", s.Node[last].Name, behind, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 28080},
		corev1.ContainerPort{ContainerPort: udpPort, HostPort: 28081, Protocol: corev1.ProtocolUDP}), podSpec("inside", s.Node[0].Name, nil))
	svc := s.service("loaded", "loaded", func(spec *corev1.ServiceSpec) {
		// A kubelet that starts again takes pods for unready until it has probed them, and kube-proxy then refuses connections.
		spec.Type, spec.PublishNotReadyAddresses = corev1.ServiceTypeNodePort, true
	})
	inside, err := s.PodDialer(s.t.Context(), 0, pods[1].ips[0])
	s.must(err)
	stop := s.serveOutside(outsidePort)
	s.t.Cleanup(stop)
	var targets []load.Target
	both := func(name string, host fmt.Stringer, tcp, udp int, dial load.Dial) {
		targets = append(targets,
			load.Target{Name: name, Network: "tcp", Address: net.JoinHostPort(host.String(), fmt.Sprint(tcp)), Dial: dial},
			load.Target{Name: name, Network: "udp", Address: net.JoinHostPort(host.String(), fmt.Sprint(udp)), Dial: dial})
	}
	for f, family := range []string{"IPv4", "IPv6"} {
		there := kube.NodeAddrs(0)[f]
		both("hostPort "+family, kube.NodeAddrs(last)[f], 28080, 28081, nil)
		both("NodePort "+family, there, int(svc.Spec.Ports[0].NodePort), int(svc.Spec.Ports[1].NodePort), nil)
		both("pod to pod "+family, pods[0].ips[f], httpPort, udpPort, inside)
		both("pod to Service "+family, netip.MustParseAddr(svc.Spec.ClusterIPs[f]), 80, 81, inside)
		both("masquerade "+family, kube.OutsideAddrs()[f], outsidePort, outsidePort, inside)
		s.served(s.asMachine(s.Outside), there, int(svc.Spec.Ports[0].NodePort), []string{pods[0].name})
	}
	options := load.Options{Long: 4, New: 10, Datagrams: 2}
	if *heavy {
		options = load.Options{Long: 100, Pause: 5 * time.Second, New: 10, Datagrams: 2} // ten targets of TCP
	}
	w := &atWork{suite: s, run: load.Start(kube.Dialer(s.Outside), options, targets...)}
	s.t.Cleanup(func() {
		if w.run != nil {
			w.run.Stop()
		}
	})
	time.Sleep(2 * time.Second)
	return w
}

// delete also deletes the pods under load.
func (w *atWork) delete(pods ...pod) {
	w.t.Helper()
	w.suite.delete(append(pods, pod{name: "loaded"}, pod{name: "inside"})...)
}

// stop ends the load and returns what became of it.
func (w *atWork) stop() load.Report {
	w.t.Helper()
	time.Sleep(2 * time.Second) // what broke a moment ago shows by now
	report := w.run.Stop()
	w.run = nil
	w.t.Logf("load:\n%s", report)
	if len(report) != 30 {
		w.t.Errorf("%d kinds of load, want 30", len(report))
	}
	return report
}

// unharmed ends the load and fails the test if one request got no answer.
func (w *atWork) unharmed() {
	w.t.Helper()
	if failed := w.stop().Failed(); failed > 0 {
		w.t.Errorf("%d requests failed", failed)
	}
}

// From Sluice to upstream and back while connections are open and opened: no request fails. Pods that the others' plugins have attached
// are reached, and leave nothing.
func TestPrivilegedSwap(t *testing.T) {
	s := open(t)
	before := s.settledState()
	w := underLoad(s)
	if s.Agent != "" { // it would put its own plugins back
		for i := range s.Node {
			s.must(s.Node[i].StopService(kube.Agent, unix.SIGTERM))
			defer func() { s.must(s.StartAgent(i, kube.Sluice)) }()
		}
	}
	var made []pod
	ports := map[string]int{}
	for n, plugins := range []kube.Plugins{kube.Reference, kube.Sluice, kube.Reference, kube.Sluice} {
		for i := range s.Node {
			s.must(s.Install(t.Context(), i, plugins))
		}
		for i := range s.Node {
			p := s.pod(fmt.Sprintf("swap%d-node%d", n, i), i, corev1.ContainerPort{ContainerPort: httpPort, HostPort: int32(21000 + n)})
			made, ports[p.name] = append(made, p), 21000+n
		}
		for _, one := range made {
			for family, addr := range one.ips {
				s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(one.node)[family], map[string]int{"http": ports[one.name]}, one.name)
				s.reaches("a pod of the others", s.asPod(made[0]), addr, protocols, one.name)
			}
		}
	}
	w.unharmed()
	w.delete(made...)
	s.nothingLeft(before)
	s.doctor()
}
