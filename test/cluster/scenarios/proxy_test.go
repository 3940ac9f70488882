// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/test/cluster/kube"
	"github.com/sluice-cni/sluice/test/cluster/load"
)

const firewall = `nft 'table inet firewall {
chain forward {
type filter hook forward priority 0;
ct state invalid drop
}
chain prerouting {
type nat hook prerouting priority 1;
}
}'`

// kube-proxy changes from one mode to another and back while pods and clients ask Services. A kind of load that upstream's plugins bring
// through without a failure, Sluice does too; where new connections fail while no rules are there, they fail with both.
func TestPrivilegedProxyModes(t *testing.T) {
	var reports []load.Report
	for _, plugins := range []kube.Plugins{kube.Reference, kube.Sluice} {
		t.Run(string(plugins), func(t *testing.T) {
			s := open(t)
			require.Asked(t, s.Agent == "", "go run ./test/cluster test without -agent: it would put its own plugins back")
			for i := range s.Node {
				s.must(s.Install(t.Context(), i, plugins))
				// Upstream's rules keep netfilter at work when kube-proxy's are away. So does any firewall; Sluice has no rules.
				_, err := s.Node[i].Shell(t.Context(), firewall)
				s.must(err)
				defer func() {
					_, err := s.Node[i].Shell(context.WithoutCancel(t.Context()), "nft delete table inet firewall")
					s.must(err)
				}()
			}
			w := underLoad(s)
			other := kube.Proxies[0]
			if other == s.Proxy {
				other = kube.Proxies[1]
			}
			for _, mode := range []string{other, s.Proxy} {
				for i := range s.Node {
					s.must(s.Node[i].StopService(kube.KubeProxy, unix.SIGTERM))
					s.must(s.SetProxyMode(i, mode))
					s.must(s.StartProxy(i))
				}
				time.Sleep(8 * time.Second)
			}
			reports = append(reports, w.stop())
			w.delete()
		})
	}
	if len(reports) < 2 {
		return
	}
	for kind, ours := range reports[1] {
		if theirs := reports[0][kind]; ours.Failed > 0 && theirs.Failed == 0 || ours.Failed > 2*theirs.Failed+5 {
			t.Errorf("%s: %d requests failed, %d with upstream: %v", kind, ours.Failed, theirs.Failed, ours.Errors)
		}
	}
}
