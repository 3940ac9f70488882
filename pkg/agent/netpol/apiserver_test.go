// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// wire is the way to an API server. It can be cut.
type wire struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
}

func (w *wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return nil, errors.New("the wire is cut")
	}
	c, err := w.dial(ctx, network, address)
	if err == nil {
		w.conns = append(w.conns, c)
	}
	return c, err
}

func (w *wire) cut(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// lab is a controller with the rights of the chart's agent, at a real API server.
type lab struct {
	t      *testing.T
	api    *kubetest.Server
	client *kubernetes.Clientset
	wire   *wire
	source *kube.Client
	*fakeDatapath
	*Controller
}

func newLab(t *testing.T) *lab {
	t.Helper()
	s := kubetest.Start(t, kubetest.Options{})
	s.Kubectl("apply", "-f", "../../../deploy/kustomize/base/sluice.yaml")
	l := &lab{t: t, api: s, client: s.Client(), fakeDatapath: &fakeDatapath{}}
	config := s.ConfigFor("system:serviceaccount:kube-system:sluice-agent")
	l.wire = &wire{dial: config.Dial}
	config.Dial = l.wire.DialContext
	source, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	l.source = source
	l.Controller = New(Options{
		Source: source, Node: "here", Begin: l.begin, Cluster: func() (Cluster, bool) { return Cluster{}, true },
		Report: report.New(&sink{}, "here", log.NewNop()), Log: log.NewNop(),
	})
	return l
}

func (l *lab) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Run(ctx)
	}()
	l.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// pod makes a pod with an address.
func (l *lab) pod(namespace, name, app, node, ip string) string {
	l.t.Helper()
	pods := l.client.CoreV1().Pods(namespace)
	p, err := pods.Create(l.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	l.must(err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	_, err = pods.UpdateStatus(l.t.Context(), p, metav1.UpdateOptions{})
	l.must(err)
	return string(p.UID)
}

func (l *lab) label(name, app string) {
	l.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"app":%q}}}`, app)
	_, err := l.client.CoreV1().Pods("shop").Patch(l.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	l.must(err)
}

func (l *lab) kill(name string) {
	l.t.Helper()
	now := int64(0)
	l.must(l.client.CoreV1().Pods("shop").Delete(l.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

func (l *lab) asks(uid, peer string) (v networkpolicy.Verdict) {
	v = networkpolicy.Pending
	l.tables(func(t *networkpolicy.Tables) {
		if t != nil {
			v = t.Lookup(uid, networkpolicy.Ingress, netip.MustParseAddr(peer), networkpolicy.TCP, 80)
		}
	})
	return v
}

// awaits returns how long it took until the verdict was as wanted.
func (l *lab) awaits(uid, peer string, want networkpolicy.Verdict) time.Duration {
	l.t.Helper()
	start := time.Now()
	for l.asks(uid, peer) != want {
		if time.Since(start) > netlab.Patient(30*time.Second) {
			l.t.Fatalf("%s from %s: %v, want %v; problems %q", uid, peer, l.asks(uid, peer), want, l.Report.Problems())
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}

func (l *lab) upsert(p *networkingv1.NetworkPolicy) {
	l.t.Helper()
	policies := l.client.NetworkingV1().NetworkPolicies(p.Namespace)
	if old, err := policies.Get(l.t.Context(), p.Name, metav1.GetOptions{}); err == nil {
		p.ResourceVersion = old.ResourceVersion
		_, err = policies.Update(l.t.Context(), p, metav1.UpdateOptions{})
		l.must(err)
		return
	}
	_, err := policies.Create(l.t.Context(), p, metav1.CreateOptions{})
	l.must(err)
}

// A cluster's life as the API server tells it: changes of labels and policies, an address that is used again, outages, and a gap.
func TestPrivilegedAPIServer(t *testing.T) {
	l := newLab(t)
	if found, err := l.source.Any(t.Context(), kube.NetworkPolicies); found || err != nil {
		t.Errorf("policies before there are any: %t, %v", found, err)
	}
	for _, ns := range []string{"shop", "bank"} {
		_, err := l.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		l.must(err)
	}
	db := l.pod("shop", "db", "db", "here", "10.0.0.1")
	l.pod("shop", "web", "web", "there", "10.0.0.2")
	l.pod("shop", "other", "other", "there", "10.0.0.3")
	l.upsert(policy("p", "db", "web"))
	if found, err := l.source.Any(t.Context(), kube.NetworkPolicies); !found || err != nil {
		t.Errorf("policies: %t, %v", found, err)
	}
	l.run()
	const admitted, denied, pending = networkpolicy.Admitted, networkpolicy.Denied, networkpolicy.Pending
	l.awaits(db, "10.0.0.2", admitted)
	l.awaits(db, "10.0.0.3", denied)

	l.label("other", "web")
	l.awaits(db, "10.0.0.3", admitted)
	l.label("other", "other")
	l.awaits(db, "10.0.0.3", denied)

	l.upsert(policy("p", "db", "other"))
	l.awaits(db, "10.0.0.3", admitted)
	l.awaits(db, "10.0.0.2", denied)
	l.upsert(policy("p", "db", "web"))
	l.awaits(db, "10.0.0.2", admitted)

	l.kill("web")
	l.awaits(db, "10.0.0.2", denied)
	l.pod("shop", "new", "other", "there", "10.0.0.2") // another pod has the address
	l.awaits(db, "10.0.0.2", denied)
	l.kill("new")
	l.pod("shop", "web", "web", "there", "10.0.0.2")
	l.awaits(db, "10.0.0.2", admitted)
	l.kill("db")
	l.awaits(db, "10.0.0.2", pending)
	db = l.pod("shop", "db", "db", "here", "10.0.0.1")
	l.awaits(db, "10.0.0.2", admitted)
	l.awaits(db, "10.0.0.3", denied)

	if l.open("shop") || !l.open("bank") {
		t.Error("shop has a policy, bank has none")
	}

	var took []time.Duration
	for i := range 200 {
		if i%2 == 0 {
			l.label("other", "web")
			took = append(took, l.awaits(db, "10.0.0.3", admitted))
		} else {
			l.label("other", "other")
			took = append(took, l.awaits(db, "10.0.0.3", denied))
		}
	}
	slices.Sort(took)
	t.Logf("from the API server's answer to the tables: median %v, p99 %v, at most %v", took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	if median := took[len(took)/2]; median > 100*time.Millisecond {
		t.Errorf("half of the changes of a label took more than %v to be in the tables", median)
	}

	l.api.Stop()
	time.Sleep(time.Second)
	if l.asks(db, "10.0.0.2") != admitted || l.asks(db, "10.0.0.3") != denied {
		t.Error("verdicts changed with the API server away")
	}
	l.api.Start()
	l.label("other", "web")
	l.awaits(db, "10.0.0.3", admitted)
	if got := l.happened(); got.begun != 1 {
		t.Errorf("%d generations", got.begun)
	}

	t.Run("gap", func(t *testing.T) { l.gap(t, db) })
	t.Run("mirror pods", l.mirrors)
}

// gap has the API server forget, by a restart, what happens while the agent cannot reach it.
func (l *lab) gap(t *testing.T, db string) {
	const admitted, denied = networkpolicy.Admitted, networkpolicy.Denied
	l.upsert(policy("q", "web", "db"))
	l.wire.cut(true)
	lists := l.listed()
	l.kill("web")
	l.kill("other")
	l.must(l.client.NetworkingV1().NetworkPolicies("shop").Delete(t.Context(), "q", metav1.DeleteOptions{}))
	l.pod("shop", "late", "web", "there", "10.0.0.9")
	l.must(l.client.CoreV1().Namespaces().Delete(t.Context(), "bank", metav1.DeleteOptions{})) // its controller does not run: it stays, and changes
	l.api.Stop()
	l.api.Start()
	l.watchOver(func(tables *networkpolicy.Tables) {
		if tables.Lookup(db, networkpolicy.Ingress, netip.MustParseAddr("192.0.2.1"), networkpolicy.TCP, 80) == admitted {
			t.Error("policies do not hold while lists are read")
		}
	})
	if l.asks(db, "10.0.0.2") != admitted {
		t.Error("what happens behind a cut wire is known")
	}
	l.wire.cut(false)
	l.awaits(db, "10.0.0.2", denied)
	l.awaits(db, "10.0.0.3", denied)
	l.awaits(db, "10.0.0.9", admitted)
	l.watchOver(nil)
	if got := l.listed(); got == lists {
		t.Error("the API server remembered everything: this was no gap")
	}
	if got := l.happened(); got.begun != 1 {
		t.Errorf("%d generations", got.begun)
	}
}

func (l *lab) listed() int {
	l.metrics.mu.Lock()
	defer l.metrics.mu.Unlock()
	return l.metrics.lists
}

// mirrors checks what the trust in the annotation of mirror pods rests on: it cannot be added to a pod, nor changed.
func (l *lab) mirrors(t *testing.T) {
	const hash = "5d8b09d7dd5ea3d6e5bf6c2bd4a1cf61"
	pods := l.client.CoreV1().Pods("shop")
	for name, before := range map[string]string{"plain": "", "mirror": hash} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: "here", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if before != "" {
			p.Annotations = map[string]string{"kubernetes.io/config.mirror": before}
		}
		_, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
		l.must(err)
		_, err = pods.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"kubernetes.io/config.mirror":"x"}}}`), metav1.PatchOptions{})
		if err == nil || !strings.Contains(err.Error(), "mirror") {
			t.Errorf("%s: the annotation can be changed: %v", name, err)
		}
	}
}
