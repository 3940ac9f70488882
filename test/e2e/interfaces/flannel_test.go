// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// flannelEnv is what flanneld writes on a node of a dual-stack cluster.
const flannelEnv = `FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_IPV6_NETWORK=fd00:10:244::/48
FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=false
`

// flannelList is the conflist that flannel's own manifests install, with
// directories of the test.
const flannelList = `{
  "name": "cbr0", "cniVersion": %q,
  "plugins": [
    {"type": "flannel", "subnetFile": %q, "dataDir": %q, "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}`

// The usual flannel conflist: pods get addresses of the node's subnet through
// bridge, publish ports and are masqueraded; DEL works when flanneld's file has
// gone, and leaves nothing.
func TestPrivilegedFlannel(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0.3.1", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			testFlannel(t, v)
		})
	}
}

func testFlannel(t *testing.T, version string) {
	dir := t.TempDir()
	env, data := filepath.Join(dir, "subnet.env"), filepath.Join(dir, "data")
	if err := os.WriteFile(env, []byte(flannelEnv), 0o600); err != nil {
		t.Fatal(err)
	}
	w := e2etest.NewWorld(t)
	rt, err := w.Node.CNI(netlab.CNIOptions{
		Path: []string{e2etest.Programs.Dir}, Stderr: w.Stderr,
		Conflist: fmt.Appendf(nil, flannelList, version, env, data),
	})
	if err != nil {
		t.Fatal(err)
	}
	web := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	other := w.AddPod(rt, "other")
	if got := web.IP4.String() + " " + web.IP6.String(); got != "10.244.1.2 fd00:10:244:1::2" {
		t.Errorf("addresses %s", got)
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "web" || got.Peer.Addr() != fam.Client(w.Client()) {
			t.Errorf("hostPort: answered by %s, which saw %s", got.Server, got.Peer)
		}
		if got := e2etest.Ask(t, other, proto, e2etest.At(fam.Pod(web), 80)); got.Server != "web" || got.Peer.Addr() != fam.Pod(other) {
			t.Errorf("pod to pod: answered by %s, which saw %s", got.Server, got.Peer)
		}
	})
	e2etest.Serve(t, w.Client(), "outside", ":81")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		if got := e2etest.Ask(t, web, proto, e2etest.At(fam.Client(w.Client()), 81)); got.Peer.Addr() != fam.Node(w.Client()) {
			t.Errorf("masquerade: the client saw %s", got.Peer)
		}
	})
	if err := os.Remove(env); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		web.MustDel()
		other.MustDel()
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 0 {
		t.Errorf("saved configurations left: %v %v", left, err)
	}
}
