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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const deploy = "../../deploy"

// kustomized is what "kubectl kustomize" makes of an overlay, without the kinds of OpenShift, which only its API server knows.
func kustomized(t *testing.T, s *kubetest.Server, dir string) string {
	t.Helper()
	var docs []string
	for doc := range strings.SplitSeq(s.Kubectl("kustomize", dir), "\n---\n") {
		if !strings.Contains(doc, "kind: SecurityContextConstraints") {
			docs = append(docs, doc)
		}
	}
	return strings.Join(docs, "\n---\n")
}

// The API server takes the plain manifests and each overlay as they are: no unknown field, no value that it refuses.
func TestPrivilegedManifestsApply(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t, kubetest.Options{})
	overlays, err := filepath.Glob(deploy + "/kustomize/overlays/*")
	if err != nil || len(overlays) != 9 {
		t.Fatalf("overlays %v: %v", overlays, err)
	}
	plain, err := os.ReadFile(deploy + "/kustomize/base/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"sluice.yaml": string(plain), "base": kustomized(t, s, deploy+"/kustomize/base")}
	for _, dir := range overlays {
		all[filepath.Base(dir)] = kustomized(t, s, dir)
	}
	for name, manifest := range all {
		out := s.KubectlWith(manifest, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		if n := strings.Count(out, "created"); n != 9 {
			t.Errorf("%s: %d objects, want 9:\n%s", name, n, out)
		}
	}
	// The same ones again change nothing, and an overlay replaces what the plain manifests made.
	s.KubectlWith(string(plain), "apply", "--validate=strict", "-f", "-")
	if out := s.KubectlWith(string(plain), "apply", "-f", "-"); strings.Count(out, "unchanged") != 9 {
		t.Errorf("a second apply changes something:\n%s", out)
	}
	if out := s.KubectlWith(all["remove"], "apply", "-f", "-"); !strings.Contains(out, "daemonset.apps/sluice-agent configured") {
		t.Errorf("remove:\n%s", out)
	}
}

// agentConfig has the token that the agent's pod has on a node. Without a node it is a token that names none, as that of another pod or
// of an older API server.
func agentConfig(s *kubetest.Server, node string) *rest.Config {
	c := s.Config()
	c.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:sluice-agent",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
	}
	if node != "" {
		c.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return c
}

// agentOn is a client with that token.
func agentOn(t *testing.T, s *kubetest.Server, node string) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(agentConfig(s, node))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func annotate(ctx context.Context, c *kubernetes.Clientset, node, patch string) error {
	_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// installed is an API server with the plain manifests and two nodes.
func installed(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.Start(t, kubetest.Options{})
	s.Kubectl("apply", "-f", deploy+"/kustomize/base/sluice.yaml")
	for _, name := range []string{"n1", "n2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"}, Labels: map[string]string{"a": "b"},
		}}
		if _, err := s.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// An agent writes its own annotations on its own Node. The policy refuses everything else, whatever RBAC lets through.
func TestPrivilegedAgentOwnNodeOnly(t *testing.T) {
	t.Parallel()
	s := installed(t)
	agent := agentOn(t, s, "n1")
	// The API server needs a moment to compile a new policy.
	for end := time.Now().Add(netlab.Patient(30 * time.Second)); ; time.Sleep(100 * time.Millisecond) {
		if err := annotate(t.Context(), agent, "n2", `{"metadata":{"annotations":{"sluice-cni.io/early":"x"}}}`); apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the policy is not in force")
		}
	}
	for _, patch := range []string{
		`{"metadata":{"annotations":{"sluice-cni.io/routing":"vxlan"}}}`,
		`{"metadata":{"annotations":{"sluice-cni.io/routing":"wireguard","flannel.alpha.coreos.com/backend-type":"vxlan"}}}`,
		`{"metadata":{"annotations":{"sluice-cni.io/routing":null,"flannel.alpha.coreos.com/backend-type":null}}}`,
	} {
		if err := annotate(t.Context(), agent, "n1", patch); err != nil {
			t.Errorf("its own node: %s: %v", patch, err)
		}
	}
	own := `{"metadata":{"annotations":{"sluice-cni.io/routing":"vxlan"}}}`
	for _, try := range []struct {
		client            *kubernetes.Clientset
		node, patch, says string
	}{
		{agent, "n2", own, `the agent of Sluice on node "n1" only updates its own`},
		{agentOn(t, s, ""), "n1", own, "only updates its own"},
		{agent, "n1", `{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"9"}}}`, "only updates annotations that begin with"},
		{agent, "n1", `{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":null}}}`, "only updates annotations that begin with"},
		{agent, "n1", `{"metadata":{"annotations":{"example.org/new":"x"}}}`, "only updates annotations that begin with"},
		{agent, "n1", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, "only updates annotations."},
		{agent, "n1", `{"metadata":{"labels":{"a":null}}}`, "only updates annotations."},
		{agent, "n1", `{"metadata":{"finalizers":["example.org/stay"]}}`, "only updates annotations."},
		{agent, "n1", `{"spec":{"unschedulable":true}}`, "only updates annotations."},
		{agent, "n1", `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`, "only updates annotations."},
		{agent, "n1", `{"spec":{"podCIDR":"10.0.0.0/8","podCIDRs":["10.0.0.0/8"]}}`, "only updates annotations."},
	} {
		err := annotate(t.Context(), try.client, try.node, try.patch)
		if err == nil || !strings.Contains(err.Error(), try.says) {
			t.Errorf("%s: %s: %v", try.node, try.patch, err)
		}
	}
	// Other users are not the policy's business.
	if err := annotate(t.Context(), s.Client(), "n2", `{"metadata":{"labels":{"x":"y"}}}`); err != nil {
		t.Errorf("the administrator: %v", err)
	}
}

// The agent's rights in the API are those that its work needs.
func TestPrivilegedAgentRights(t *testing.T) {
	t.Parallel()
	s := installed(t)
	client := agentOn(t, s, "n1")
	v1, policies := client.CoreV1(), client.NetworkingV1().NetworkPolicies("")
	ctx := t.Context()
	event := func(namespace string) error {
		_, err := v1.Events(namespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "n1.", Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "n1"}, Reason: "Test", Type: corev1.EventTypeWarning,
		}, metav1.CreateOptions{})
		return err
	}
	watch := func(w interface{ Stop() }, err error) error {
		if err == nil {
			w.Stop()
		}
		return err
	}
	_, nodes := v1.Nodes().List(ctx, metav1.ListOptions{})
	_, pods := v1.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	for what, err := range map[string]error{
		"list nodes": nodes, "list pods of a node": pods, "an Event": event("default"),
		"watch nodes":           watch(v1.Nodes().Watch(ctx, metav1.ListOptions{})),
		"watch pods":            watch(v1.Pods("").Watch(ctx, metav1.ListOptions{})),
		"watch namespaces":      watch(v1.Namespaces().Watch(ctx, metav1.ListOptions{})),
		"watch NetworkPolicies": watch(policies.Watch(ctx, metav1.ListOptions{})),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, secrets := v1.Secrets("").List(ctx, metav1.ListOptions{})
	_, maps := v1.ConfigMaps("kube-system").List(ctx, metav1.ListOptions{})
	_, created := v1.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}}, metav1.CreateOptions{})
	_, status := v1.Nodes().Patch(ctx, "n1", types.MergePatchType, []byte(`{"status":{"podCIDR":"x"}}`), metav1.PatchOptions{}, "status")
	_, pod := v1.Pods("default").Create(ctx, &corev1.Pod{}, metav1.CreateOptions{})
	for what, err := range map[string]error{
		"list Secrets": secrets, "list ConfigMaps": maps, "create a Node": created, "patch a Node's status": status, "create a pod": pod,
		"delete a Node":           v1.Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}),
		"an Event in a namespace": event("kube-system"),
		"watch Services":          watch(v1.Services("").Watch(ctx, metav1.ListOptions{})),
		"delete a NetworkPolicy":  client.NetworkingV1().NetworkPolicies("default").Delete(ctx, "p", metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %s", what, fmt.Sprint(err))
		}
	}
}
