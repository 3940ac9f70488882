// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// noTables takes everything.
type noTables struct{}

func (noTables) Apply(context.Context, []networkpolicy.Change) error { return nil }
func (noTables) Finish(context.Context) error                        { return nil }

// The cluster of ADR 62: 10,000 pods of 2,000 workloads in 200 namespaces, 1,000 policies, and 110 pods on the node.
const (
	manyPods       = 10000
	manyWorkloads  = 2000
	manyNamespaces = 200
	manyPolicies   = 1000
	perNode        = 110
)

// bigPod is a pod as an API server has it, with what the agent has no use for: 6 kB in protobuf.
func bigPod(i int) *corev1.Pod {
	workload := i % manyWorkloads
	node := "there"
	if i%(manyPods/perNode) == 0 {
		node = "here"
	}
	p := pod(fmt.Sprint("ns-", workload%manyNamespaces), fmt.Sprintf("app-%d-5d4f8c7b9-%05d", workload, i), fmt.Sprint("app-", workload), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	p.UID = types.UID(fmt.Sprintf("0b9a9f5e-51b8-4ac5-b7f6-%012d", i))
	p.Spec.NodeName = node
	p.Labels["pod-template-hash"], p.Labels["tier"] = fmt.Sprintf("5d4f8c7b%d", workload), fmt.Sprint("tier-", workload%5)
	p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%x", i)})
	p.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{` + strings.Repeat(`"f:labels":{".":{}},`, 120) + `}}`)}}}
	for range 2 {
		c := corev1.Container{Name: "c", Image: "registry.example.org/team/app:v1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}
		for i := range 20 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", i), Value: "a value that is about as long as values are"})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "c", Image: c.Image, ImageID: "sha256:" + strings.Repeat("0", 64), ContainerID: "containerd://" + strings.Repeat("0", 64)})
	}
	return p
}

func bigPolicy(i int) *networkingv1.NetworkPolicy {
	workload := i % manyWorkloads
	p := policy(fmt.Sprint("p-", i), fmt.Sprint("app-", workload), fmt.Sprint("app-", (workload+manyNamespaces)%manyWorkloads))
	p.Namespace = fmt.Sprint("ns-", workload%manyNamespaces)
	p.Spec.Ingress = append(p.Spec.Ingress,
		networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint("team-", i%20)}}}}},
		networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.0.2.%d/32", i%250)}}}})
	return p
}

// decoded returns a pod as it comes from the wire: nothing of it is shared.
func decoded(tb testing.TB, wire []byte) *corev1.Pod {
	p := &corev1.Pod{}
	if err := p.Unmarshal(wire); err != nil {
		tb.Fatal(err)
	}
	return p
}

// filled returns a run that has the whole cluster in force.
func filled(tb testing.TB) *run {
	tb.Helper()
	c := New(Options{
		Node: "here", Begin: func(context.Context) (Tables, error) { return noTables{}, nil }, Report: report.New(&sink{}, "here", log.NewNop()), Log: log.NewNop(),
	})
	r := newRun(c, Cluster{})
	lists := []struct {
		n    int
		make func(i int) kruntime.Object
	}{
		{manyNamespaces, func(i int) kruntime.Object {
			ns := namespace(fmt.Sprint("ns-", i))
			ns.Labels["team"] = fmt.Sprint("team-", i%20)
			return ns
		}},
		{manyPolicies, func(i int) kruntime.Object { return bigPolicy(i) }},
		{manyPods, func(i int) kruntime.Object {
			wire, err := bigPod(i).Marshal()
			if err != nil {
				tb.Fatal(err)
			}
			return decoded(tb, wire)
		}},
	}
	for i, list := range lists {
		in := newSeen()
		for j := range list.n {
			r.take(event{time.Now(), r.change(list.make(j), false, in)})
		}
		r.retain(resources[i], in)
	}
	r.commit(tb.Context())
	if r.tables == nil {
		tb.Fatal(r.failure)
	}
	return r
}

// What the agent keeps of a large cluster leaves room in its 60 MB for the program, lists and client-go.
func TestMemory(t *testing.T) {
	const most = 16 << 20
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	r := filled(t)
	used := heap() - before
	wire, _ := bigPod(1).Marshal()
	t.Logf("%d B kept for %+v; a pod has %d B on the wire", used, r.engine.Stats(), len(wire))
	if used > most {
		t.Errorf("%d bytes for the cluster, want at most %d", used, most)
	}
	runtime.KeepAlive(r)
}

// One update of a pod that changes nothing, as most do, and one that changes a label: decoding, converting, compiling.
func BenchmarkPodEvent(b *testing.B) {
	r := filled(b)
	plain := bigPod(5)
	other := bigPod(5)
	other.Labels["app"] = "app-1"
	var wires [2][]byte
	for i, p := range []*corev1.Pod{plain, other} {
		var err error
		if wires[i], err = p.Marshal(); err != nil {
			b.Fatal(err)
		}
	}
	for name, step := range map[string]int{"status": 0, "label": 1} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				r.take(event{time.Now(), r.change(decoded(b, wires[i*step%2]), false, nil)})
				r.commit(b.Context())
				r.settle(time.Now().Add(time.Hour))
			}
		})
	}
}
