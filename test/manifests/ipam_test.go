// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

func ipamManifest(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, "ipam", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const pools = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools"

// ipamNode is a client with the token that a node's kubeconfig has.
func ipamNode(t *testing.T, s *kubetest.Server, node string) *kubernetes.Clientset {
	t.Helper()
	c := s.Config()
	c.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:sluice-ipam",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
	}
	if node != "" {
		c.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func patchPool(ctx context.Context, c *kubernetes.Clientset, name, ops string) error {
	return c.CoreV1().RESTClient().Patch(types.JSONPatchType).AbsPath(pools + "/" + name).Body([]byte("[" + ops + "]")).Do(ctx).Error()
}

// The objects of cluster-wide addresses are taken as they are. A node takes addresses in its own name only, and the agent of a node gets
// a token of its own node only.
func TestPrivilegedIPAMManifests(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t, kubetest.Options{})
	for name, want := range map[string]int{"crds.yaml": 3, "rbac.yaml": 5, "admission.yaml": 2, "agent.yaml": 4} {
		out := s.KubectlWith(ipamManifest(t, name), "apply", "--validate=strict", "-f", "-")
		if n := strings.Count(out, "created"); n != want {
			t.Errorf("%s: %d objects, want %d:\n%s", name, n, want, out)
		}
	}
	s.Kubectl("wait", "--for", "condition=established", "--timeout=60s", "crd", "--all")
	s.Kubectl("apply", "-f", deploy+"/kustomize/base/sluice.yaml")
	for _, name := range []string{"n1", "n2"} {
		if _, err := s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node := ipamNode(t, s, "n1")
	pool := `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":"10.0.0.0-24"},"spec":{"range":"10.0.0.0/24","allocations":{}}}`
	if err := node.CoreV1().RESTClient().Post().AbsPath(pools).Body([]byte(pool)).SetHeader("Content-Type", "application/json").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	entry := func(off, id, podRef string) string {
		return `{"op":"add","path":"/spec/allocations/` + off + `","value":{"id":"` + id + `","podref":"` + podRef + `"}}`
	}
	// The API server needs a moment to compile a new policy.
	other := entry("1", "sluice/n2/m.b.x", "")
	for end := time.Now().Add(netlab.Patient(30 * time.Second)); !apierrors.IsForbidden(patchPool(t.Context(), node, "10.0.0.0-24", other)); time.Sleep(100 * time.Millisecond) {
		s.KubectlWith(pool, "apply", "-n", "kube-system", "-f", "-")
		if time.Now().After(end) {
			t.Fatal("the policy is not in force")
		}
	}
	strip := `{"op":"add","path":"/metadata/managedFields","value":[{}]}`
	for _, ops := range []string{
		entry("2", "sluice/n1/m.b.x", "") + "," + strip,
		entry("3", "sluice-held/x/pod/ns/web-0/net1@n1/m.b", ""),
		entry("4", "sluice-held/x/pod/ns/web-1/net1", ""),
		`{"op":"remove","path":"/spec/allocations/2"}`,
	} {
		if err := patchPool(t.Context(), node, "10.0.0.0-24", ops); err != nil {
			t.Errorf("%s: %v", ops, err)
		}
	}
	for name, ops := range map[string]string{
		"another node's":       other,
		"a name that begins":   entry("5", "sluice/n11/m.b.x", ""),
		"a pod of whereabouts": entry("5", "c1", "ns/p"),
		"held by another":      entry("5", "sluice-held/x/pod/ns/web-2/net1@n2/m.b", ""),
		"the range":            `{"op":"replace","path":"/spec/range","value":"10.0.0.0/8"}`,
		"an annotation":        `{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}`,
	} {
		if err := patchPool(t.Context(), node, "10.0.0.0-24", ops); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := patchPool(t.Context(), ipamNode(t, s, ""), "10.0.0.0-24", entry("6", "sluice/n1/m.b.x", "")); !apierrors.IsForbidden(err) {
		t.Errorf("a token without a node: %v", err)
	}
	for what, err := range map[string]error{
		"delete": node.CoreV1().RESTClient().Delete().AbsPath(pools + "/10.0.0.0-24").Do(t.Context()).Error(),
		"secrets": func() error {
			_, err := node.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
			return err
		}(),
		"pods": func() error {
			_, err := node.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
			return err
		}(),
		"patch a node": annotate(t.Context(), node, "n1", `{"metadata":{"annotations":{"sluice-cni.io/a":"b"}}}`),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.KubectlWith(ipamManifest(t, "kept-addresses.yaml"), "apply", "--validate=strict", "-f", "-")
	for end := time.Now().Add(netlab.Patient(30 * time.Second)); ; time.Sleep(100 * time.Millisecond) {
		_, err := node.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("pods, for addresses that are kept: %v", err)
		}
	}
	// The policy looks at each entry, and what it may compute is limited.
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf(`"%d":{"id":"sluice/node-with-a-name-%d/0123456789ab.0123456789ab.0123456789ab","podref":""}`, i+1, i%50))
	}
	large := `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":"10.1.0.0-16"},"spec":{"range":"10.1.0.0/16","allocations":{` + strings.Join(many, ",") + `}}}`
	if err := s.Client().CoreV1().RESTClient().Post().AbsPath(pools).Body([]byte(large)).SetHeader("Content-Type", "application/json").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	for name, ops := range map[string]string{"its own": entry("20000", "sluice/n1/m.b.x", ""), "another node's": entry("20001", "sluice/n2/m.b.x", "")} {
		began := time.Now()
		err := patchPool(t.Context(), node, "10.1.0.0-16", ops)
		t.Logf("%s entry in a pool of %d: %v", name, len(many), time.Since(began))
		if ok := name == "its own"; ok && err != nil || !ok && !apierrors.IsForbidden(err) {
			t.Errorf("%s entry in a pool of %d: %v", name, len(many), err)
		}
	}
	if err := tokenOf(t, s, "n1", "n1"); err != nil {
		t.Errorf("the token of its own node: %v", err)
	}
	if err := tokenOf(t, s, "n1", "n2"); !apierrors.IsForbidden(err) {
		t.Errorf("the token of another node: %v", err)
	}
}

// tokenOf has the agent on one node ask for the token of a node, and checks who that is.
func tokenOf(t *testing.T, s *kubetest.Server, on, of string) error {
	t.Helper()
	agent, err := kube.New(agentConfig(s, on))
	if err != nil {
		t.Fatal(err)
	}
	token, end, err := agent.Token(t.Context(), "kube-system", "sluice-ipam", of, 2*time.Hour)
	if err != nil {
		return err
	}
	if left := time.Until(end); left < time.Hour || left > 3*time.Hour {
		t.Errorf("the token ends in %v", left)
	}
	c := s.Config()
	c.CertData, c.KeyData, c.CertFile, c.KeyFile, c.BearerToken = nil, nil, "", "", token
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if u := who.Status.UserInfo; u.Username != "system:serviceaccount:kube-system:sluice-ipam" || fmt.Sprint(u.Extra["authentication.kubernetes.io/node-name"]) != "["+of+"]" {
		t.Errorf("the token is of %+v", u)
	}
	return nil
}
