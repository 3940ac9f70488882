// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/storeproc"
)

const persistent = `,"allowPersistentIPs":true`

// addPod is ADD for a pod of the API server; it returns the first address.
func (h *host) addPod(container, pod, extra string) (netip.Addr, error) {
	got, err := h.add(h.podArgs(container, pod, extra))
	if err != nil {
		return netip.Addr{}, err
	}
	return got[0], nil
}

func (h *host) podArgs(container, pod, extra string) *cniskel.Args {
	a := h.args(container, extra, persistent)
	a.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod
	return a
}

func (h *host) delPod(container, pod, extra string) {
	h.t.Helper()
	if err := h.plugin.Del(context.Background(), h.podArgs(container, pod, extra)); err != nil {
		h.t.Fatalf("%s: DEL %s: %v", h.name, container, err)
	}
	h.background.Wait()
}

// makePod makes a pod object. more are further fields of its metadata.
func makePod(s *kubetest.Server, name, more string) {
	s.KubectlWith(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"default"%s},
		"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}`, name, more), "create", "--validate=false", "-f", "-")
}

// kubeKept gives the server what a cluster with KubeVirt's claims has.
func kubeKept(s *kubetest.Server) {
	s.KubectlWith(ipamClaims, "apply", "-f", "-")
	s.Kubectl("wait", "--for", "condition=established", "--timeout=60s", "crd", "ipamclaims.k8s.cni.cncf.io")
	s.KubectlWith(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default","namespace":"default"}}`, "apply", "-f", "-")
}

// A pod of a StatefulSet that asks for it gets the address that the pod before it had, on any node, once that one is gone: by
// DEL, or with its node. It gets none of another's, and no other pod gets its address.
func testKeptPods(t *testing.T, s *kubetest.Server) {
	kubeKept(s)
	a, b := kubeHost(t, s, "kept-1"), kubeHost(t, s, "kept-2")
	extra := `"range":"10.37.0.0/28"` // 14 addresses
	s.KubectlWith(`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":2,"serviceName":"web",
		"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, "apply", "-f", "-")
	owned := `,"ownerReferences":[{"apiVersion":"apps/v1","kind":"StatefulSet","name":"web","uid":"u","controller":true}],"annotations":{"sluice-cni.io/keep-addresses":"true"}`
	for i := range 2 {
		makePod(s, fmt.Sprintf("web-%d", i), owned)
	}
	makePod(s, "plain", "")
	makePod(s, "lone", `,"annotations":{"sluice-cni.io/keep-addresses":"true"}`)

	first, err := a.addPod("c1", "web-0", extra)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.addPod("c1", "web-0", extra); err != nil || again != first {
		t.Errorf("a repeated ADD: %s %v", again, err)
	}
	if err := a.plugin.Check(context.Background(), a.podArgs("c1", "web-0", extra)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if _, err := b.addPod("p", "plain", extra); err != nil {
		t.Errorf("a pod that asks for nothing: %v", err)
	}
	_, err = b.addPod("l", "lone", extra)
	wantCode(t, err, cnierr.CodeConfig, "sluice-cni.io/keep-addresses", "default/lone")
	// Force-deleted: its successor is on another node while the first may run.
	_, err = b.addPod("c2", "web-0", extra)
	wantCode(t, err, cnierr.CodeTryAgain, first.String(), "web-0", "kept-1")
	_, err = a.addPod("c3", "web-0", extra)
	wantCode(t, err, cnierr.CodeTryAgain, "c1")
	a.delPod("c1", "web-0", extra)
	if got, err := b.addPod("c2", "web-0", extra); err != nil || got != first {
		t.Errorf("after DEL: %s %v, want %s", got, err, first)
	}
	b.delPod("c2", "web-0", extra)
	// Full pools: no other pod gets what is kept, as long as the StatefulSet has such a pod.
	seen := map[netip.Addr]bool{first: true}
	for i := 0; ; i++ {
		got, err := a.add(a.args(fmt.Sprintf("d%d", i), extra))
		if err != nil {
			wantCode(t, err, cnierr.CodeExhausted, "pod default/web-0, kept 1")
			break
		}
		if seen[got[0]] {
			t.Fatalf("%s twice", got[0])
		}
		seen[got[0]] = true
	}
	// The node dies, and its Node object goes.
	if got, err := b.addPod("c4", "web-0", extra); err != nil || got != first {
		t.Errorf("%s %v", got, err)
	}
	s.Kubectl("delete", "node", "kept-2")
	c := kubeHost(t, s, "kept-3")
	if got, err := c.addPod("c5", "web-0", extra); err != nil || got != first {
		t.Errorf("after the node was deleted: %s %v, want %s", got, err, first)
	}
	// DEL without the server is carried through later, and a reboot frees it as well.
	s.Stop()
	c.delPod("c5", "web-0", extra)
	s.Start()
	c.boot++
	c.register(s)
	if got, err := c.addPod("c6", "web-0", extra); err != nil || got != first {
		t.Errorf("after a reboot: %s %v, want %s", got, err, first)
	}
	c.delPod("c6", "web-0", extra)
	// The StatefulSet needs the pod no more: its address is free, beside the one that another pod of the dead node had.
	s.Kubectl("delete", "pod", "web-0", "--force", "--grace-period=0")
	s.Kubectl("delete", "statefulset", "web")
	d := kubeHost(t, s, "kept-4")
	if e, f := d.mustAdd("e", extra), d.mustAdd("f", extra); e != first && f != first {
		t.Errorf("%s and %s, want %s: nobody has it", e, f, first)
	}
}

// The pods that name an IPAMClaim have its addresses: one after the other, two at a time during the migration of a virtual
// machine, and none that another has.
func testIPAMClaims(t *testing.T, s *kubetest.Server) {
	kubeKept(s)
	a, b := kubeHost(t, s, "claim-1"), kubeHost(t, s, "claim-2")
	extra := `"range":"10.34.0.0/28","ipRanges":[{"range":"fd34::/64"}]`
	claim := func(name, network string) {
		s.KubectlWith(fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1alpha1","kind":"IPAMClaim","metadata":{"name":%q,"namespace":"default"},
			"spec":{"network":%q,"interface":"net1"}}`, name, network), "create", "-f", "-")
	}
	ips := func(name string) (out []string) {
		var o struct {
			Status struct {
				IPs []string `json:"ips"`
			} `json:"status"`
		}
		if err := json.Unmarshal([]byte(s.Kubectl("get", "ipamclaim", name, "-o", "json")), &o); err != nil {
			t.Fatal(err)
		}
		return o.Status.IPs
	}
	claim("one", "net")
	claim("vm.net", "net")
	claim("far", "other")
	names := func(ref, more string) string {
		return fmt.Sprintf(`,"annotations":{"k8s.v1.cni.cncf.io/networks":"[{\"name\":\"n\",\"ipam-claim-reference\":\"%s\"}]"}%s`, ref, more)
	}
	vm := `,"labels":{"vm.kubevirt.io/name":"vm"}`
	makePod(s, "one-a", names("one", ""))
	makePod(s, "one-b", names("one", ""))
	makePod(s, "vm-a", names("vm.net", vm))
	makePod(s, "vm-b", names("vm.net", vm))
	makePod(s, "vm-other", names("vm.net", ""))
	makePod(s, "far", names("far", ""))
	makePod(s, "none", names("absent", ""))

	got, err := a.add(a.podArgs("c1", "one-a", extra))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("[%s/28 %s/64]", got[0], got[1]); fmt.Sprint(ips("one")) != want {
		t.Errorf("the IPAMClaim says %v, the pod has %s", ips("one"), want)
	}
	_, err = b.addPod("c2", "one-b", extra)
	wantCode(t, err, cnierr.CodeTryAgain, got[0].String(), "IPAMClaim default/one")
	a.delPod("c1", "one-a", extra)
	next, err := b.add(b.podArgs("c2", "one-b", extra))
	if err != nil || next[0] != got[0] || next[1] != got[1] {
		t.Errorf("%v %v, want %v", next, err, got)
	}
	b.delPod("c2", "one-b", extra)
	// In CNI_ARGS and in args.cni, for a pod without an annotation.
	makePod(s, "bare", "")
	x := a.podArgs("c3", "bare", extra)
	x.Args += ";ipam-claim-reference=one"
	if next, err := a.add(x); err != nil || next[0] != got[0] {
		t.Errorf("CNI_ARGS: %v %v", next, err)
	}
	a.delPod("c3", "bare", extra)
	y := a.args("c4", extra, persistent, `,"args":{"cni":{"ipam-claim-reference":"one"}}`)
	y.Args = x.Args
	if next, err := a.add(y); err != nil || next[0] != got[0] {
		t.Errorf("args.cni: %v %v", next, err)
	}
	a.delPod("c4", "bare", extra)
	z := a.args("c5", extra)
	z.Args += ";ipam-claim-reference=one"
	_, err = a.add(z)
	wantCode(t, err, cnierr.CodeConfig, "allowPersistentIPs", "one")

	// A migration.
	va, err := a.addPod("v1", "vm-a", extra)
	if err != nil {
		t.Fatal(err)
	}
	if vb, err := b.addPod("v2", "vm-b", extra); err != nil || vb != va {
		t.Errorf("the target of a migration has %s %v, want %s", vb, err, va)
	}
	_, err = b.addPod("v3", "vm-other", extra)
	wantCode(t, err, cnierr.CodeConflict, va.String(), "IPAMClaim default/vm.net")
	a.delPod("v1", "vm-a", extra)
	b.delPod("v2", "vm-b", extra)
	if vc, err := a.addPod("v4", "vm-a", extra); err != nil || vc != va {
		t.Errorf("after a restart: %s %v, want %s", vc, err, va)
	}
	a.delPod("v4", "vm-a", extra)

	_, err = a.addPod("f", "far", extra)
	wantCode(t, err, cnierr.CodeConfig, `"other"`, `"net"`)
	_, err = a.addPod("g", "none", extra)
	wantCode(t, err, cnierr.CodeConfig, `"absent"`)

	// A tenant writes another's address into its claim: it does not get it.
	victim := b.mustAdd("victim", extra)
	claim("thief", "net")
	s.Kubectl("patch", "ipamclaim", "thief", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status":{"ips":["%s/28"]}}`, victim))
	makePod(s, "thief", names("thief", ""))
	_, err = a.addPod("t", "thief", extra)
	wantCode(t, err, cnierr.CodeConflict, victim.String())

	// Without its IPAMClaim an address is anybody's, when one is needed.
	s.Kubectl("delete", "ipamclaim", "one")
	free := false
	for i := range 14 {
		more, err := a.add(a.args(fmt.Sprintf("m%d", i), extra))
		if err != nil {
			break
		}
		free = free || more[0] == got[0]
	}
	if !free {
		t.Errorf("%s is kept for a claim that is deleted", got[0])
	}
}

// An ADD that is killed behind its claim leaves nothing that a pod elsewhere waits for.
func testKeptIdle(t *testing.T, s *kubetest.Server) {
	kubeKept(s)
	a, b := kubeHost(t, s, "idle-1"), kubeHost(t, s, "idle-2")
	extra := `"range":"10.35.0.0/28"`
	s.KubectlWith(`{"apiVersion":"k8s.cni.cncf.io/v1alpha1","kind":"IPAMClaim","metadata":{"name":"idle","namespace":"default"},"spec":{"network":"net","interface":"net1"}}`, "create", "-f", "-")
	makePod(s, "idle", `,"annotations":{"k8s.v1.cni.cncf.io/networks":"[{\"name\":\"n\",\"ipam-claim-reference\":\"idle\"}]"}`)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	args := a.podArgs("c1", "idle", extra)
	if err := ensureOnly(ctx, a, args); err != nil {
		t.Fatal(err)
	}
	if e := fmt.Sprint(allocations(t, s, "10.35.0.0-28")); !strings.Contains(e, "default/idle@idle-1/") {
		t.Fatalf("the pool has %s", e)
	}
	a.delPod("c1", "idle", extra) // as the runtime does after an ADD that failed
	if _, err := b.addPod("c2", "idle", extra); err != nil {
		t.Error(err)
	}
}

const ipamClaims = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: ipamclaims.k8s.cni.cncf.io }
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: { kind: IPAMClaim, listKind: IPAMClaimList, plural: ipamclaims, singular: ipamclaim }
  versions:
    - name: v1alpha1
      served: true
      storage: true
      subresources: { status: {} }
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              required: [interface, network]
              properties: { interface: { type: string }, network: { type: string } }
            status:
              type: object
              required: [ips]
              properties:
                ips: { type: array, items: { type: string } }
                ownerPod: { type: object, properties: { name: { type: string } } }
`

// ensureOnly does what an ADD does before it takes the address.
func ensureOnly(ctx context.Context, h *host, a *cniskel.Args) error {
	c, err := conf.Load(a)
	if err != nil {
		return err
	}
	l := (&plugin{Deps{Store: h, Node: func(string, string) blocks.Node { return h.node() }}}).call(c, a)
	o, err := l.owner(ctx)
	if err != nil {
		return err
	}
	t, err := l.target(ctx, 0)
	if err != nil {
		return err
	}
	t.keep(o)
	return l.Store.Call(ctx, storeproc.Ensure, l.job(t), nil)
}
