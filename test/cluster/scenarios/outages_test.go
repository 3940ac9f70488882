// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/test/cluster/kube"
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

// containerd and kubelet are killed and come again: pods go on, new ones come up, old ones can be deleted and leave nothing.
func TestPrivilegedNodeServices(t *testing.T) {
	s := open(t)
	last := len(s.Node) - 1
	s.delete(s.pod("first", last))
	before, err := s.nodeState(t.Context())
	s.must(err)
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
	s.delete(old, pod{name: "loaded"})
	s.nothingLeft(before)
	s.doctor()
}

// A node is deleted while it is down, and joins again, perhaps with other pod CIDRs: its pods are reached from the other nodes.
func TestPrivilegedNodeJoinsAgain(t *testing.T) {
	s := open(t)
	last := len(s.Node) - 1
	node := s.Node[last]
	stays := s.pod("stays", 0)
	s.pod("lost", last)
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
	p := s.pod("again", last, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 23000})
	for family, addr := range p.ips {
		s.reaches(stays.name, s.asPod(stays), addr, protocols, p.name)
		s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(last)[family], map[string]int{"http": 23000}, p.name)
	}
	for _, addr := range stays.ips {
		s.reaches(p.name, s.asPod(p), addr, protocols, stays.name)
	}
	s.doctor()
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
	s.delete(again, away[1], pod{name: "loaded"})
	s.doctor()
}
