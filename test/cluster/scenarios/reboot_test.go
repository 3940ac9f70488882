// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/test/cluster/kube"
)

// A node loses power under load of the others, which lose nothing. Its pods come back with what they had published, and leave nothing when they
// are deleted.
func TestPrivilegedReboot(t *testing.T) {
	s := open(t)
	before := s.settledState()
	node := 0
	var w *atWork
	if len(s.Node) > 2 { // the load uses the first node and the last
		node, w = 1, underLoad(s)
	}
	stays := s.pod("stays", len(s.Node)-1)
	names := []string{"back0", "back1"}
	port := corev1.ContainerPort{ContainerPort: httpPort, HostPort: 24000}
	old := append(s.create(podSpec(names[0], s.Node[node].Name, nil, port), podSpec(names[1], s.Node[node].Name, nil)), stays)
	s.must(s.Reboot(t.Context(), node))
	pods := []pod{s.again(names[0], 1), s.again(names[1], 1), stays}
	for i, p := range pods {
		t.Logf("%s had %v, and has %v", p.name, old[i].ips, p.ips)
		for _, other := range pods {
			for _, addr := range other.ips {
				s.reaches(p.name, s.asPod(p), addr, protocols, other.name)
			}
		}
	}
	for _, addr := range kube.NodeAddrs(node) {
		s.reaches("outside", s.asMachine(s.Outside), addr, map[string]int{"http": 24000}, names[0])
		s.reaches("another node", s.asMachine(s.Node[stays.node]), addr, map[string]int{"http": 24000}, names[0])
	}
	s.doctor()
	if w == nil {
		s.delete(pods...)
	} else {
		w.unharmed()
		w.delete(pods...)
	}
	s.nothingLeft(before)
	s.doctor()
}
