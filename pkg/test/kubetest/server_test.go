// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Objects outlive the API server and etcd, which are away in between. A user may do what RBAC allows, no more.
func TestPrivilegedServer(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	c := s.Client()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.0.0/24", "fd24::/64"}}}
	if _, err := c.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if out := s.Kubectl("get", "node", "n", "-o", "jsonpath={.spec.podCIDRs[1]}"); out != "fd24::/64" {
		t.Errorf("kubectl says %q", out)
	}
	s.Stop()
	if _, err := c.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); err == nil {
		t.Error("a stopped server answers")
	}
	s.StopEtcd()
	s.StartEtcd()
	s.Start()
	if _, err := c.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	other, err := kubernetes.NewForConfig(s.ConfigFor("system:node:n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without a role: %v", err)
	}
}

// A watch ends with the server and the client hears of what happened since.
func TestPrivilegedServerOutage(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	w, err := s.Client().CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.Stop()
	late := time.After(30 * time.Second)
	for open := true; open; {
		select {
		case _, open = <-w.ResultChan():
		case <-late:
			t.Fatal("the watch of a server that is gone stays open")
		}
	}
	s.Start()
	s.Kubectl("create", "namespace", "after")
	if out := s.Kubectl("get", "namespaces", "-o", "name"); !strings.Contains(out, "namespace/after\n") {
		t.Errorf("namespaces: %s", out)
	}
}
