// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// left lists what pods have on a node: devices, addresses, records, hostPorts, endpoints. Times and counters are not in it.
const left = `echo devices; ip -o link | sed 's/.*: \([^:@]*\).*: <.*/\1/' | grep -v -e '^lo$' -e '^eth0$' -e '^cni0$' | sort
echo addresses; find /var/lib/cni/networks -name '*.*.*.*' -o -name '*:*' | sort
echo records; ls /run/sluice/attachments 2>/dev/null | sort
echo netns; ls /run/netns /var/run/netns | sort -u | grep -v :
echo rules; (iptables-save; ip6tables-save) 2>/dev/null | grep -c -E 'CNI-(DN|SN)-' || true
echo routes; (ip route; ip -6 route) | grep -v -e ' dev cni0' | sed 's/ expires.*//'
echo hostports; /cluster/sluice/sluice hostports -o json | grep -c port || true
echo endpoints; /cluster/sluice/sluice endpoints | grep -c eth0 || true`

// nodeState is what pods have left on each node. It also runs the doctor, which must find nothing wrong.
func (s *suite) nodeState(ctx context.Context) (states []string, err error) {
	for i := range s.Node {
		state, err := s.Node[i].Shell(ctx, left)
		if err != nil {
			return nil, err
		}
		states = append(states, state)
	}
	return states, nil
}

// settledState is nodeState after the first pods of each node, which also make what stays: programs, maps, a bridge.
func (s *suite) settledState() []string {
	s.t.Helper()
	var specs []*corev1.Pod
	for i := range s.Node {
		specs = append(specs, podSpec(fmt.Sprint("first", i), s.Node[i].Name, nil))
	}
	s.delete(s.create(specs...)...)
	state, err := s.nodeState(s.t.Context())
	s.must(err)
	return state
}

// doctor fails the test if a node is not as it should be.
func (s *suite) doctor() {
	s.t.Helper()
	for i := range s.Node {
		if out, err := s.Tool(s.t.Context(), i, "doctor"); err != nil || !strings.Contains(out, "0 problems, 0 warnings") {
			s.t.Errorf("%s: %v: %s", s.Node[i].Name, err, out)
		}
	}
}

var manyPods = flag.Int("pods", 60, "how many pods come and go before the nodes are looked at")

// After many pods, with hostPorts and without, nothing is left on any node, and the doctor finds nothing wrong.
func TestPrivilegedManyPods(t *testing.T) {
	s := open(t)
	before := s.settledState()
	const atOnce = 60
	for n := 0; n < *manyPods; n += atOnce {
		var specs []*corev1.Pod
		for k := range min(atOnce, *manyPods-n) {
			var ports []corev1.ContainerPort
			if k%2 == 0 {
				ports = []corev1.ContainerPort{{ContainerPort: httpPort, HostPort: int32(26000 + k)}}
			}
			specs = append(specs, podSpec(fmt.Sprint("many", n+k), s.Node[k%len(s.Node)].Name, nil, ports...))
		}
		s.delete(s.create(specs...)...)
	}
	for _, e := range s.failedAdds(t.Context()) {
		t.Errorf("an ADD failed: %s: %s", e.InvolvedObject.Name, e.Message)
	}
	s.nothingLeft(before)
	s.doctor()
}

// Pods with hostPorts and limits leave nothing on any node when they are deleted, and the doctor finds nothing wrong before and after.
func TestPrivilegedDeletion(t *testing.T) {
	s := open(t)
	before := s.settledState()
	var specs []*corev1.Pod
	for n := range 12 {
		spec := podSpec(fmt.Sprint("p", n), s.Node[n%len(s.Node)].Name, nil, corev1.ContainerPort{ContainerPort: httpPort, HostPort: int32(20000 + n)},
			corev1.ContainerPort{ContainerPort: udpPort, HostPort: int32(20000 + n), Protocol: corev1.ProtocolUDP})
		spec.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "100M"}
		specs = append(specs, spec)
	}
	pods := s.create(specs...)
	during, err := s.nodeState(t.Context())
	s.must(err)
	for i := range during {
		if during[i] == before[i] {
			t.Errorf("%s: pods are not to be seen:\n%s", s.Node[i].Name, during[i])
		}
	}
	s.doctor()
	s.delete(pods...)
	s.nothingLeft(before)
	s.doctor()
}

// nothingLeft waits until the nodes are as they were. A runtime removes some of a pod after the API server has forgotten it.
func (s *suite) nothingLeft(before []string) {
	s.t.Helper()
	s.until("nothing is left", func(ctx context.Context) error {
		after, err := s.nodeState(ctx)
		for i := range after {
			if after[i] != before[i] {
				return fmt.Errorf("%s has\n%s\nand had before\n%s", s.Node[i].Name, after[i], before[i])
			}
		}
		return err
	})
}
