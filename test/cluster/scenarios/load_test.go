// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/load"
)

// atWork has pods under load from outside: directly, by a hostPort and by a Service at a node that has none of its pods.
type atWork struct {
	*suite
	run *load.Run
}

// underLoad starts the load and waits until all of it is there.
func underLoad(s *suite) *atWork {
	s.t.Helper()
	behind := map[string]string{"app": "loaded"}
	last := len(s.Node) - 1
	pods := s.create(podSpec("loaded", s.Node[last].Name, behind, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 28080},
		corev1.ContainerPort{ContainerPort: udpPort, HostPort: 28081, Protocol: corev1.ProtocolUDP}))
	svc := s.service("loaded", "loaded", func(spec *corev1.ServiceSpec) {
		// A kubelet that starts again takes pods for unready until it has probed them, and kube-proxy then refuses connections.
		spec.Type, spec.PublishNotReadyAddresses = corev1.ServiceTypeNodePort, true
	})
	addr := func(host fmt.Stringer, port int) string { return net.JoinHostPort(host.String(), fmt.Sprint(port)) }
	var targets []load.Target
	for f, family := range []string{"IPv4", "IPv6"} {
		here, there := kube.NodeAddrs(last)[f], kube.NodeAddrs(0)[f]
		targets = append(targets,
			load.Target{Name: "hostPort " + family, Network: "tcp", Address: addr(here, 28080)},
			load.Target{Name: "hostPort " + family, Network: "udp", Address: addr(here, 28081)},
			load.Target{Name: "NodePort " + family, Network: "tcp", Address: addr(there, int(svc.Spec.Ports[0].NodePort))},
			load.Target{Name: "NodePort " + family, Network: "udp", Address: addr(there, int(svc.Spec.Ports[1].NodePort))},
		)
		s.served(s.asMachine(s.Outside), there, int(svc.Spec.Ports[0].NodePort), []string{pods[0].name})
	}
	w := &atWork{suite: s, run: load.Start(kube.Dialer(s.Outside), load.Options{Long: 4, New: 10, Datagrams: 2}, targets...)}
	s.t.Cleanup(func() {
		if w.run != nil {
			w.run.Stop()
		}
	})
	time.Sleep(time.Second)
	return w
}

// unharmed ends the load and fails the test if one request got no answer.
func (w *atWork) unharmed() {
	w.t.Helper()
	time.Sleep(2 * time.Second) // what broke a moment ago shows by now
	report := w.run.Stop()
	w.run = nil
	w.t.Logf("load:\n%s", report)
	if report.Failed() > 0 {
		w.t.Errorf("%d requests failed", report.Failed())
	}
	if len(report) < 12 {
		w.t.Errorf("%d kinds of load, want 12", len(report))
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
	s.delete(append(made, pod{name: "loaded"})...)
	s.nothingLeft(before)
	s.doctor()
}
