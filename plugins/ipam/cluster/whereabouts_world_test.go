// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/nodeid"
	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
)

// beside is a cluster whose nodes have whereabouts' own program or Sluice's. The definitions are whereabouts'.
type beside struct {
	t    *testing.T
	s    *kubetest.Server
	bin  string // of Sluice
	wb   string // of whereabouts
	dir  string
	boot string
	nets int
}

func newBeside(t *testing.T) *beside {
	t.Helper()
	wb, err := kubebin.Build(t.Context(), kubebin.Whereabouts, kubebin.WhereaboutsReconciler)
	if err != nil {
		t.Fatal(err)
	}
	source, err := kubebin.Source(t.Context(), kubebin.Whereabouts, "github.com/k8snetworkplumbingwg/whereabouts")
	if err != nil {
		t.Fatal(err)
	}
	b := &beside{t: t, s: kubetest.Start(t, kubetest.Options{}), bin: programs(t), wb: wb, dir: t.TempDir()}
	definitions, err := filepath.Glob(filepath.Join(source, "doc/crds/whereabouts.cni.cncf.io_*.yaml"))
	if err != nil || len(definitions) != 3 {
		t.Fatalf("%v %v", definitions, err)
	}
	for _, file := range definitions {
		b.s.Kubectl("apply", "-f", file)
	}
	b.s.Kubectl("wait", "--for", "condition=established", "--timeout=60s", "crd", "--all")
	if err := os.WriteFile(filepath.Join(b.dir, "whereabouts.conf"), []byte("{}"), 0o600); err != nil { // it asks for one
		t.Fatal(err)
	}
	b.boot = nodeid.BootID()
	return b
}

// besideNode is a node with either program: a folder, and a Node object.
type besideNode struct {
	*beside
	name, dir, kubeconfig string
}

func (b *beside) node(t *testing.T) *besideNode {
	t.Helper()
	b.nets++
	n := &besideNode{beside: b, name: fmt.Sprintf("beside-%d", b.nets), kubeconfig: b.s.Kubeconfig}
	n.dir = filepath.Join(b.dir, n.name) // its store program stays behind the test
	register(t, b.s, n.name, b.boot)
	return n
}

func (n *besideNode) caller(ipam string) *caller {
	return &caller{n.s.NS, n.bin, fmt.Sprintf(`%s,"configuration_path":%q,"kubernetes":{"kubeconfig":%q}`, ipam, filepath.Join(n.dir, "none"), n.kubeconfig), n.name}
}

// sluice calls Sluice's program, and whereabouts calls whereabouts'.
func (n *besideNode) sluice(verb, ipam, id string) (netip.Addr, error) {
	out, err := n.caller(ipam).run(verb, n.dir, id)
	return address(verb, out, err)
}

func (n *besideNode) whereabouts(verb, ipam, id string) (netip.Addr, error) {
	c := n.caller(ipam)
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"whereabouts","configuration_path":%q,"kubernetes":{"kubeconfig":%q},%s}}`,
		filepath.Join(n.beside.dir, "whereabouts.conf"), n.kubeconfig, ipam)
	out, err := c.exec(exec.Command(filepath.Join(n.wb, kubebin.Whereabouts)), verb, id, text)
	return address(verb, out, err)
}

// address returns the first address of a result.
func address(verb, out string, err error) (netip.Addr, error) {
	if err != nil || verb != "ADD" {
		return netip.Addr{}, err
	}
	var res struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal([]byte(out), &res); err != nil || len(res.IPs) == 0 {
		return netip.Addr{}, fmt.Errorf("result %s: %w", out, err)
	}
	return res.IPs[0].Address.Addr(), nil
}

// operate runs a command of the operator on a node.
func (n *besideNode) operate(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(n.bin, "sluice-ipam-store"), append([]string{args[0], "-kubeconfig", n.s.Kubeconfig, "-data-dir", n.dir}, args[1:]...)...)
	cmd.Env = append(os.Environ(), "NODENAME="+n.name)
	var out []byte
	err := n.s.NS.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Errorf("sluice ipam %v: %v: %s", args, err, out)
	}
	return string(out)
}

// reconcile runs whereabouts' reconciler once.
func (b *beside) reconcile(t *testing.T) {
	t.Helper()
	cmd := exec.Command(filepath.Join(b.wb, kubebin.WhereaboutsReconciler), b.s.Kubeconfig)
	var out []byte
	err := b.s.NS.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Errorf("reconciler: %v: %s", err, out)
	}
}

// runs makes the pod of an attachment, which reports its address.
func (n *besideNode) runs(name string, a netip.Addr) {
	status := fmt.Sprintf(`[{\"name\":\"ns/net\",\"interface\":\"net1\",\"ips\":[\"%s\"],\"default\":false}]`, a)
	n.s.KubectlWith(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"ns","annotations":{"k8s.v1.cni.cncf.io/network-status":"%s"}},
		"spec":{"nodeName":%q,"containers":[{"name":"c","image":"none"}]}}`, name, status, n.name), "apply", "-f", "-")
}

// reservations returns whereabouts' reservations that lie in a network.
func (b *beside) reservations(cidr string) map[string]string {
	b.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				PodRef string `json:"podref"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(b.s.Kubectl("-n", namespace, "get", "overlappingrangeipreservations", "-o", "json")), &list); err != nil {
		b.t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range list.Items {
		if a, err := netip.ParseAddr(strings.ReplaceAll(r.Metadata.Name, "-", ":")); err == nil && netip.MustParsePrefix(cidr).Contains(a) {
			out[a.String()] = r.Spec.PodRef
		}
	}
	return out
}

// entries returns what a pool has for pods of whereabouts.
func (b *beside) entries(t *testing.T, name string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for off, e := range allocations(t, b.s, name) {
		if e["podref"] != "" {
			out[off] = e["podref"]
		}
	}
	return out
}

func rangeOf(cidr string, more ...string) string {
	return fmt.Sprintf(`"range":%q`, cidr) + comma(strings.Join(more, ","))
}
