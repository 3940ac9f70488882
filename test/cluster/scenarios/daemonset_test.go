// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/test/cluster/kube"
)

// The repository's manifest runs the agent as a DaemonSet, and rollouts upgrade and downgrade it under load: no request and no ADD fails.
func TestPrivilegedRollout(t *testing.T) {
	s := open(t)
	require.Asked(t, s.Agent == "", "go run ./test/cluster test, without -agent")
	s.must(s.BuildBefore(t.Context(), *revision))
	s.must(s.ImportAgents(t.Context()))
	before := s.settledState()
	manifest, err := s.AgentManifest(t.Context(), kube.Sluice)
	s.must(err)
	w := underLoad(s)
	pods := startChurn(s)
	kubectl := func(stdin string, args ...string) {
		t.Helper()
		if out, err := s.Kubectl(t.Context(), stdin, args...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	rolledOut := func() {
		kubectl("", "-n", "kube-system", "rollout", "status", "--timeout=3m", "daemonset/sluice-agent")
	}
	kubectl(manifest, "apply", "-f", "-")
	defer func() { // other tests use the cluster
		_, err := s.Kubectl(t.Context(), manifest, "delete", "--ignore-not-found", "--wait", "-f", "-")
		for i := range s.Node {
			_, left := s.Node[i].Shell(t.Context(), "rm -f /etc/cni/net.d/90-sluice.conflist")
			if left == nil {
				left = s.upgrade(i, kube.Sluice)
			}
			s.must(left)
		}
		s.must(err)
	}()
	rolledOut()
	loaded := s.builds()
	for n := range *upgrades {
		kubectl("", "-n", "kube-system", "set", "image", "daemonset/sluice-agent", "agent="+kube.AgentImage([]kube.Plugins{kube.Before, kube.Sluice}[n%2]))
		rolledOut()
		loaded = s.replaced(loaded)
	}
	pods.unharmed(*upgrades)
	w.unharmed()
	w.delete()
	s.nothingLeft(before)
	s.doctor()
}
