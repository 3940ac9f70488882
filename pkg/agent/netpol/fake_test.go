// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// fakeAPI is an API server with versions, a history that can be compacted, and outages.
type fakeAPI struct {
	mu       sync.Mutex
	version  int
	objects  map[kube.Resource]map[string]runtime.Object
	history  []change
	oldest   int // watches from before that are refused
	watchers map[*fakeWatch]struct{}
	down     error
	hold     map[kube.Resource]chan struct{} // lists wait until it is closed
	lists    map[kube.Resource]int
	watches  map[kube.Resource]int
}

type change struct {
	resource kube.Resource
	version  int
	watch.Event
}

type fakeWatch struct {
	api      *fakeAPI
	resource kube.Resource
	events   chan watch.Event
}

func (w *fakeWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *fakeWatch) Stop() {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.end()
}

func (w *fakeWatch) end() {
	if _, ok := w.api.watchers[w]; ok {
		delete(w.api.watchers, w)
		close(w.events)
	}
}

func newAPI() *fakeAPI {
	return &fakeAPI{
		version: 1, objects: map[kube.Resource]map[string]runtime.Object{}, watchers: map[*fakeWatch]struct{}{},
		hold: map[kube.Resource]chan struct{}{}, lists: map[kube.Resource]int{}, watches: map[kube.Resource]int{},
	}
}

func resourceOf(obj runtime.Object) kube.Resource {
	switch obj.(type) {
	case *corev1.Pod:
		return kube.Pods
	case *corev1.Namespace:
		return kube.Namespaces
	}
	return kube.NetworkPolicies
}

// asked is how many lists and watches of pods there were.
func (a *fakeAPI) asked() (lists, watches int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists[kube.Pods], a.watches[kube.Pods]
}

func (a *fakeAPI) put(objects ...runtime.Object) { a.write(watch.Modified, objects...) }

func (a *fakeAPI) remove(objects ...runtime.Object) { a.write(watch.Deleted, objects...) }

func (a *fakeAPI) write(what watch.EventType, objects ...runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, obj := range objects {
		obj = obj.DeepCopyObject()
		m, _ := meta.Accessor(obj)
		a.version++
		m.SetResourceVersion(strconv.Itoa(a.version))
		r, key := resourceOf(obj), m.GetNamespace()+"/"+m.GetName()
		if a.objects[r] == nil {
			a.objects[r] = map[string]runtime.Object{}
		}
		if a.objects[r][key] = obj; what == watch.Deleted {
			delete(a.objects[r], key)
		}
		c := change{r, a.version, watch.Event{Type: what, Object: obj}}
		a.history = append(a.history, c)
		for w := range a.watchers {
			if w.resource == r {
				w.events <- c.Event
			}
		}
	}
}

// cut ends all watches. A gap makes the API server forget what was before.
func (a *fakeAPI) cut(gap bool, down error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
	for w := range a.watchers {
		w.end()
	}
	if gap {
		a.version++
		a.oldest = a.version
	}
}

func (a *fakeAPI) List(ctx context.Context, r kube.Resource, note func(runtime.Object)) (string, error) {
	a.mu.Lock()
	hold := a.hold[r]
	a.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	a.mu.Lock()
	a.lists[r]++
	list, version, down := slices.Collect(maps.Values(a.objects[r])), a.version, a.down
	a.mu.Unlock()
	if down != nil {
		return "", down
	}
	for _, obj := range list {
		note(obj)
	}
	return strconv.Itoa(version), nil
}

func (a *fakeAPI) Watch(ctx context.Context, r kube.Resource, version string) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches[r]++
	from, err := strconv.Atoi(version)
	switch {
	case a.down != nil:
		return nil, a.down
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	case from < a.oldest:
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	w := &fakeWatch{a, r, make(chan watch.Event, 1000)}
	a.watchers[w] = struct{}{}
	context.AfterFunc(ctx, w.Stop)
	for _, c := range a.history {
		if c.resource == r && c.version > from {
			w.events <- c.Event
		}
	}
	return w, nil
}

// fakeDatapath has generations of tables in memory. The one in force answers.
type fakeDatapath struct {
	mu      sync.Mutex
	inForce *networkpolicy.Tables
	counts
	fails error
	guard func(t *networkpolicy.Tables) // called after each change of the tables in force
}

// counts is what happened to a datapath.
type counts struct {
	begun, finished int                 // generations
	applied         int                 // batches
	highest         networkpolicy.Point // of all sets
}

func (d *fakeDatapath) happened() counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// tables calls look with the tables in force.
func (d *fakeDatapath) tables(look func(t *networkpolicy.Tables)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	look(d.inForce)
}

func (d *fakeDatapath) open(namespace string) (open bool) {
	d.tables(func(t *networkpolicy.Tables) { open = t.Open(namespace) })
	return open
}

func (d *fakeDatapath) size() (s networkpolicy.Size) {
	d.tables(func(t *networkpolicy.Tables) { s = t.Size() })
	return s
}

type generation struct {
	d      *fakeDatapath
	tables *networkpolicy.Tables
}

func (d *fakeDatapath) begin(context.Context) (Tables, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun++
	return &generation{d, networkpolicy.NewTables()}, d.fails
}

func (g *generation) Apply(_ context.Context, changes []networkpolicy.Change) error {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	if g.d.fails != nil {
		return g.d.fails
	}
	g.d.applied++
	for _, c := range changes {
		g.tables.Apply(c)
		if w, ok := c.(networkpolicy.WriteSet); ok {
			for _, s := range w.Segments {
				g.d.highest = max(g.d.highest, s.Point)
			}
		}
		if g.d.guard != nil && g.tables == g.d.inForce {
			g.d.guard(g.tables)
		}
	}
	return nil
}

func (g *generation) Finish(context.Context) error {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	g.d.finished++
	g.d.inForce = g.tables
	return nil
}

func (d *fakeDatapath) watchOver(guard func(t *networkpolicy.Tables)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.guard = guard
}

func (d *fakeDatapath) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = err
}

// node is an agent's controller between a fake API server and a fake datapath. It is for tests inside a bubble of synctest.
type node struct {
	t *testing.T
	*fakeAPI
	*fakeDatapath
	*Controller
	sink    *sink
	cluster atomic.Pointer[Cluster]
	changed chan struct{}
}

type sink struct{ events []*corev1.Event }

func (s *sink) CreateEvent(_ context.Context, e *corev1.Event) error {
	s.events = append(s.events, e)
	return nil
}

// bubble runs a test in a bubble of synctest, on a node whose controller does not run yet.
func bubble(t *testing.T, test func(n *node)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, fakeAPI: newAPI(), fakeDatapath: &fakeDatapath{}, sink: &sink{}, changed: make(chan struct{}, 1)}
		n.Controller = New(Options{
			Source: n.fakeAPI, Node: "here", Begin: n.begin, Cluster: func() (Cluster, bool) { return *n.cluster.Load(), true }, NodesChanged: n.changed,
			Report: report.New(n.sink, "here", log.NewNop()), Log: log.NewNop(),
		})
		n.cluster.Store(&Cluster{})
		n.put(namespace("shop"), namespace("bank"))
		test(n)
	})
}

// start runs the controller until the test ends.
func (n *node) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(ctx)
	}()
	n.t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
}

// admits checks verdicts of pods of this node about TCP to port 80.
func (n *node) admits(uid, peer string, want bool) {
	n.t.Helper()
	n.fakeDatapath.mu.Lock()
	defer n.fakeDatapath.mu.Unlock()
	if n.inForce == nil {
		n.t.Fatal("no tables are in force")
	}
	if got := n.inForce.Lookup(uid, networkpolicy.Ingress, netip.MustParseAddr(peer), networkpolicy.TCP, 80); (got == networkpolicy.Admitted) != want {
		n.t.Errorf("%s from %s: %v, want admitted %t", uid, peer, got, want)
	}
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
}

func pod(where, uid, app, ip string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: where, Name: uid, UID: types.UID(uid), Labels: map[string]string{"app": app}, CreationTimestamp: metav1.Unix(1, 0)},
		Spec:       corev1.PodSpec{NodeName: "here"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	return p
}

// policy lets an app of the namespace shop reach another one.
func policy(name, to, from string) *networkingv1.NetworkPolicy {
	app := func(s string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": s}}
	}
	peer := app(from)
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: app(to), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &peer}}}},
		},
	}
}

var errDown = errors.New("connection refused")
