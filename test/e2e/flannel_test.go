// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

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
	w := newWorld(t)
	rt, err := w.Node.CNI(netlab.CNIOptions{
		Path: []string{programs.Dir}, Stderr: w.stderr,
		Conflist: fmt.Appendf(nil, flannelList, version, env, data),
	})
	if err != nil {
		t.Fatal(err)
	}
	web := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
	serve(t, web, "web", ":80")
	other := w.add(rt, "other")
	if got := web.IP4.String() + " " + web.IP6.String(); got != "10.244.1.2 fd00:10:244:1::2" {
		t.Errorf("addresses %s", got)
	}
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080)); got.name != "web" || got.peer.Addr() != fam.client(w.Client()) {
			t.Errorf("hostPort: answered by %s, which saw %s", got.name, got.peer)
		}
		if got := ask(t, other, proto, at(fam.pod(web), 80)); got.name != "web" || got.peer.Addr() != fam.pod(other) {
			t.Errorf("pod to pod: answered by %s, which saw %s", got.name, got.peer)
		}
	})
	serve(t, w.Client(), "outside", ":81")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		if got := ask(t, web, proto, at(fam.client(w.Client()), 81)); got.peer.Addr() != fam.node(w.Client()) {
			t.Errorf("masquerade: the client saw %s", got.peer)
		}
	})
	if err := os.Remove(env); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		web.mustDel()
		other.mustDel()
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 0 {
		t.Errorf("saved configurations left: %v %v", left, err)
	}
}
