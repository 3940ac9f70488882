// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"flag"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/test/cluster/kube"
)

var cluster = flag.String("cluster", "", "the cluster to test")

// suite is a cluster as one test sees it: with a namespace of its own.
type suite struct {
	*kube.Cluster
	t      *testing.T
	client *kubernetes.Clientset
	ns     string
}

// open returns the cluster with an empty namespace, which goes with the test. Tests do not run side by side: some break the cluster.
func open(t *testing.T) *suite {
	t.Helper()
	require.Asked(t, *cluster != "", "make cluster-test")
	c, err := kube.Open(*cluster)
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{Cluster: c, t: t, client: client}
	s.ns = strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestPrivileged"), "/", "-"))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	s.until("the namespace has its service account", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(s.ns).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

func (s *suite) close() {
	ctx, cancel := context.WithTimeout(context.Background(), netlab.Patient(4*time.Minute))
	defer cancel()
	if s.t.Failed() {
		s.t.Log(s.describe(ctx))
	}
	none := int64(0)
	err := s.client.CoreV1().Namespaces().Delete(ctx, s.ns, metav1.DeleteOptions{GracePeriodSeconds: &none})
	if err != nil {
		s.t.Error(err)
	}
	if err := kube.Poll(ctx, 3*time.Minute, "the namespace is gone", func(ctx context.Context) error {
		_, err := s.client.CoreV1().Namespaces().Get(ctx, s.ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errStays
		}
		return err
	}); err != nil {
		s.t.Error(err)
	}
}

// describe is what a failed test prints.
func (s *suite) describe(ctx context.Context) string {
	out, err := s.Kubectl(ctx, "", "-n", s.ns, "get", "pods,services,events", "-o", "wide")
	if err != nil {
		out += err.Error()
	}
	for i := range s.Node {
		doctor, err := s.Tool(ctx, i, "doctor")
		if err != nil {
			doctor = err.Error()
		}
		out += "\n" + s.Node[i].Name + ": " + doctor
	}
	return out
}

// until waits at most a minute.
func (s *suite) until(what string, ask func(context.Context) error) {
	s.t.Helper()
	if err := kube.Poll(s.t.Context(), time.Minute, what, ask); err != nil {
		s.t.Fatal(err)
	}
}

func (s *suite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
