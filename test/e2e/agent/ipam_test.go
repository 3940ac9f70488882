// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/nodeid"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const ipamKubeconfig = confDir + "/whereabouts.d/sluice-ipam.kubeconfig"

// pools are the allocations of all pools: offset to owner.
func (n *node) pools() map[string]map[string]string {
	n.T.Helper()
	text, err := n.client.CoreV1().RESTClient().Get().AbsPath("/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools").Do(context.Background()).Raw()
	if err != nil {
		n.T.Fatal(err)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				Allocations map[string]struct{ ID string }
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		n.T.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, p := range list.Items {
		out[p.Metadata.Name] = map[string]string{}
		for off, a := range p.Spec.Allocations {
			out[p.Metadata.Name][off] = a.ID
		}
	}
	return out
}

// A node gets a kubeconfig for cluster-wide addresses from the agent. With its token, the rights of deploy/ipam and the policies there, pods
// get addresses of both families. They keep coming while the agent is away, and the kubeconfig goes with "remove".
func TestPrivilegedAgentIPAM(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, name := range []string{"crds.yaml", "rbac.yaml", "admission.yaml", "agent.yaml"} {
		text, err := os.ReadFile("../../../deploy/ipam/" + name)
		if err != nil {
			t.Fatal(err)
		}
		n.api.KubectlWith(string(text), "apply", "-f", "-")
	}
	n.api.Kubectl("wait", "--for", "condition=established", "--timeout=60s", "crd", "--all")
	n.configure("ipam: {serviceAccount: kube-system/sluice-ipam}")
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	object, err := n.client.CoreV1().Nodes().Get(t.Context(), self, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Status.NodeInfo.BootID = nodeid.BootID() // as the kubelet writes it
	if _, err := n.client.CoreV1().Nodes().UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	agent := n.start()
	n.awaitReady()
	e2etest.Eventually(t, patient, func() error {
		if !strings.Contains(n.read(ipamKubeconfig), `"token"`) {
			return fmt.Errorf("no token in %s", ipamKubeconfig)
		}
		return nil
	})

	rt, err := n.Node.CNI(netlab.CNIOptions{Path: []string{binDir}, Stderr: n.Stderr, Conflist: []byte(`{"cniVersion": "1.0.0", "name": "flat", "plugins": [{
		"type": "macvlan", "master": "eth0", "ipam": {"type": "whereabouts", "ipRanges": [
			{"range": "192.0.2.0/24", "range_start": "192.0.2.100"}, {"range": "2001:db8:1::/64", "range_start": "2001:db8:1::100"}]}}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	first := n.AddPod(rt, "first")
	if !netip.MustParsePrefix("192.0.2.0/24").Contains(first.IP4) || !netip.MustParsePrefix("2001:db8:1::/64").Contains(first.IP6) {
		t.Errorf("addresses %s and %s", first.IP4, first.IP6)
	}
	pools := n.pools()
	if len(pools) != 2 {
		t.Errorf("pools %v", pools)
	}
	for name, p := range pools {
		if len(p) == 0 {
			t.Errorf("pool %s is empty", name)
		}
		for off, id := range p {
			if !strings.HasPrefix(id, "sluice/"+self+"/") {
				t.Errorf("%s, %s is of %q", name, off, id)
			}
		}
	}
	agent.Signal(unix.SIGTERM)
	second := n.AddPod(rt, "second")
	if second.IP4 == first.IP4 || second.IP6 == first.IP6 {
		t.Errorf("two pods have %s and %s", second.IP4, second.IP6)
	}
	first.MustDel()
	second.MustDel()
	if out, err := n.remove(); err != nil {
		t.Errorf("remove: %v, %s", err, out)
	}
	if n.read(ipamKubeconfig) != "" {
		t.Error("the token is left")
	}
}
