// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// While the API server and then etcd are away, pods are reached as before. Afterwards, new ones come up.
func TestPrivilegedControlPlaneOutage(t *testing.T) {
	s := open(t)
	w := underLoad(s)
	for _, service := range []string{kubebin.APIServer, kubebin.Etcd} {
		s.must(s.Control.StopService(service, unix.SIGKILL))
		time.Sleep(5 * time.Second)
		s.must(s.Restart(service))
		s.must(s.WaitAPI(t.Context()))
		p := s.pod("after-"+service, 0)
		s.reaches("outside", s.asMachine(s.Control), p.ips[0], protocols, p.name)
	}
	w.unharmed()
}

var outage = flag.Duration("outage", 40*time.Second, "how long the API server is away")

// The API server is away for longer than it takes a node to be given up. Nothing of the nodes changes, pods are reached, and a pod comes and
// goes that kubelet runs without the API server.
func TestPrivilegedLongOutage(t *testing.T) {
	s := open(t)
	last := len(s.Node) - 1
	s.settledState()
	w := underLoad(s)
	before, err := s.nodeState(t.Context())
	s.must(err)
	s.must(s.Control.StopService(kubebin.APIServer, unix.SIGKILL))
	start := time.Now()
	remove, err := s.StaticPod(last, podSpec("static", "", nil, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 23100}))
	s.must(err)
	answers := func(context.Context) error {
		said, err := s.asMachine(s.Outside)("http", "hostname", kube.NodeAddrs(last)[0], 23100)
		if err == nil && said != "static-"+s.Node[last].Name {
			err = fmt.Errorf("it says %q", said)
		}
		return err
	}
	s.until("the static pod answers", answers)
	time.Sleep(time.Until(start.Add(*outage)))
	s.must(answers(t.Context()))
	s.must(remove())
	s.nothingLeft(before)
	s.must(s.Restart(kubebin.APIServer))
	s.must(s.WaitAPI(t.Context()))
	for i := range s.Node {
		s.must(s.WaitReady(t.Context(), s.client, i))
	}
	p := s.pod("after", last)
	s.reaches("the control machine", s.asMachine(s.Control), p.ips[0], protocols, p.name)
	w.unharmed()
	s.doctor()
}

// containerd and kubelet are killed and come again: pods go on, new ones come up, old ones can be deleted and leave nothing.
func TestPrivilegedNodeServices(t *testing.T) {
	s := open(t)
	last := len(s.Node) - 1
	before := s.settledState()
	w := underLoad(s)
	old := s.pod("old", last, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 22000})
	for name, again := range map[string]func() error{
		kube.Containerd: func() error { return s.StartContainerd(t.Context(), last) },
		kube.Kubelet:    func() error { return s.StartKubelet(last) },
		kube.KubeProxy:  func() error { return s.StartProxy(last) },
	} {
		s.must(s.Node[last].StopService(name, unix.SIGKILL))
		time.Sleep(2 * time.Second)
		s.must(again())
		s.must(s.WaitReady(t.Context(), s.client, last))
		p := s.pod("after-"+name, last, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 22001})
		s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(last)[0], map[string]int{"http": 22001}, p.name)
		s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(last)[0], map[string]int{"http": 22000}, old.name)
		s.delete(p)
	}
	w.unharmed()
	w.delete(old)
	s.nothingLeft(before)
	s.doctor()
}

// A node is deleted while it is down, and joins again with other pod CIDRs: its pods are reached from the other nodes, and nothing is left of
// the former networks.
func TestPrivilegedNodeJoinsAgain(t *testing.T) {
	s := open(t)
	last := len(s.Node) - 1
	node := s.Node[last]
	stays := s.pod("stays", 0)
	lost := s.pod("lost", last)
	former := s.podCIDRs(last)
	s.must(node.StopService(kube.Kubelet, unix.SIGTERM))
	s.must(s.client.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
	s.until("the pod of the deleted node is gone", func(ctx context.Context) error {
		none := int64(0)
		err := s.client.CoreV1().Pods(s.ns).Delete(ctx, "lost", metav1.DeleteOptions{GracePeriodSeconds: &none})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errStays)
	})
	s.must(s.StartKubelet(last))
	s.must(s.Connect(t.Context(), last))
	now := s.podCIDRs(last)
	if slices.Equal(former, now) {
		t.Errorf("the node has %v again: this is no test of another network", now)
	}
	s.until("the network is of the new pod CIDRs", func(ctx context.Context) error { // an agent waits for the pods on a bridge
		_, err := node.Run(ctx, "grep", "-rqF", now[0], "/etc/cni/net.d")
		return err
	})
	p := s.pod("again", last, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 23000})
	for family, addr := range p.ips {
		s.reaches(stays.name, s.asPod(stays), addr, protocols, p.name)
		s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(last)[family], map[string]int{"http": 23000}, p.name)
	}
	for _, addr := range stays.ips {
		s.reaches(p.name, s.asPod(p), addr, protocols, stays.name)
	}
	s.until("the pod from before has left nothing", func(ctx context.Context) error {
		out, err := node.Shell(ctx, "ls /var/lib/cni/networks/*; ip route; ip -6 route; "+machine.Shared+"/sluice/sluice endpoints")
		for _, addr := range lost.ips {
			if err == nil && slices.Contains(strings.Fields(out), addr.String()) {
				err = fmt.Errorf("%s is still there:\n%s", addr, out)
			}
		}
		return err
	})
	s.doctor()
}

func (s *suite) podCIDRs(i int) []string {
	s.t.Helper()
	node, err := s.client.CoreV1().Nodes().Get(s.t.Context(), s.Node[i].Name, metav1.GetOptions{})
	s.must(err)
	return node.Spec.PodCIDRs
}

// While the agents are away, pods are reached, come and go. They start again and the nodes are as before.
func TestPrivilegedAgentOutage(t *testing.T) {
	s := open(t)
	require.Asked(t, s.Agent != "", "go run ./test/cluster test -agent host-gw")
	w := underLoad(s)
	for i := range s.Node {
		s.must(s.Node[i].StopService(kube.Agent, unix.SIGKILL))
	}
	away := s.create(podSpec("away0", s.Node[0].Name, nil), podSpec("away1", s.Node[len(s.Node)-1].Name, nil))
	for _, addr := range away[1].ips {
		s.reaches("away0", s.asPod(away[0]), addr, protocols, "away1")
	}
	s.delete(away[0])
	for i := range s.Node {
		s.must(s.StartAgent(i, kube.Sluice))
	}
	time.Sleep(3 * time.Second) // what they change on nodes that are as they should be shows under load
	again := s.pod("again", 0)
	for _, addr := range away[1].ips {
		s.reaches("again", s.asPod(again), addr, protocols, "away1")
	}
	w.unharmed()
	w.delete(again, away[1])
	s.doctor()
}
