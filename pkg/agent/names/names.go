// SPDX-License-Identifier: Apache-2.0

// Package names knows which pod or Service has an address, by the API server, as long as a client asks.
//
// It keeps a name, labels and the workload of each, and lists and watches only while it is used: at rest the agent keeps nothing. What it
// holds is bounded. It changes nothing.
package names

import (
	"context"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/cilium/api/v1/flow"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/log"
)

const (
	// maxNames bounds the pods, and the Services, that are kept. Addresses of others stay without a name.
	maxNames = 10000
	// maxLabel and maxLabels bound what a tenant makes the agent keep of a pod.
	maxLabel  = 128
	maxLabels = 32
	// waitTime is how long Use waits for the first answer of the API server.
	waitTime = 3 * time.Second
	// retry is the pause after a failure.
	retry = 5 * time.Second
	// nodesTime is how long the addresses of the nodes serve.
	nodesTime = 5 * time.Second
	// linger is how long the names are kept up to date after their last user: calls come one after the other.
	linger = 30 * time.Second
)

// Cache has the names. It is safe for concurrent use.
type Cache struct {
	client *kube.Client
	nodes  func() (self, others []netip.Addr)
	log    *log.Logger

	mu       sync.Mutex
	users    int
	stop     func()
	timer    *time.Timer
	ready    chan struct{} // closed after the first answer for pods
	pods     map[types.UID]*entry
	services map[types.UID]*entry
	byAddr   map[netip.Addr]*entry // pods
	byIP     map[netip.Addr]*entry // Services
	hosts    map[netip.Addr]*flow.Endpoint
	hostsAt  time.Time
}

// entry is a pod or a Service.
type entry struct {
	uid             types.UID
	namespace, name string
	labels          []string
	workload        *flow.Workload
	identity        uint32
	addrs           []netip.Addr
}

// New returns a cache. nodes returns the addresses of this node and of the others.
func New(client *kube.Client, nodes func() (self, others []netip.Addr), l *log.Logger) *Cache {
	return &Cache{client: client, nodes: nodes, log: l}
}

// Use keeps the names up to date until release is called. It waits a few seconds for them.
func (c *Cache) Use(ctx context.Context) (release func()) {
	c.mu.Lock()
	c.users++
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.stop == nil {
		c.start()
	}
	ready := c.ready
	c.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
	case <-time.After(waitTime):
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.users--; c.users == 0 {
				c.timer = time.AfterFunc(linger, c.rest)
			}
		})
	}
}

// start begins to follow. The caller has the lock.
func (c *Cache) start() {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop, c.ready = cancel, make(chan struct{})
	c.pods, c.services = map[types.UID]*entry{}, map[types.UID]*entry{}
	c.byAddr, c.byIP = map[netip.Addr]*entry{}, map[netip.Addr]*entry{}
	ready := sync.OnceFunc(func() { close(c.ready) })
	go c.follow(ctx, kube.Pods, ready, func(o watch.Event) { c.note(ctx, o, c.pods, c.byAddr, c.podEntry) })
	go c.follow(ctx, kube.Services, func() {}, func(o watch.Event) { c.note(ctx, o, c.services, c.byIP, serviceEntry) })
}

// rest forgets everything, unless there is a user again.
func (c *Cache) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users > 0 || c.stop == nil {
		return
	}
	c.stop()
	c.stop, c.pods, c.services, c.byAddr, c.byIP, c.hosts, c.hostsAt = nil, nil, nil, nil, nil, nil, time.Time{}
}

// follow lists and watches one kind until ctx ends. A list comes as events too, and a bookmark without an object says that it begins anew.
func (c *Cache) follow(ctx context.Context, kind kube.Resource, listed func(), note func(watch.Event)) {
	said := ""
	for ctx.Err() == nil {
		note(watch.Event{Type: watch.Bookmark})
		err := c.client.Follow(ctx, kind, listed, note)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			c.log.Warn("names of "+string(kind), log.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// note brings the maps up to date. A bookmark without an object empties them, before a list.
func (c *Cache) note(ctx context.Context, o watch.Event, known map[types.UID]*entry, by map[netip.Addr]*entry, convert func(any) *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if o.Object == nil {
		clear(known)
		clear(by)
		return
	}
	e := convert(o.Object)
	if e == nil {
		return
	}
	if old := known[e.uid]; old != nil {
		for _, ip := range old.addrs {
			if by[ip] == old {
				delete(by, ip)
			}
		}
		delete(known, e.uid)
	}
	if o.Type == watch.Deleted || len(e.addrs) == 0 || len(known) >= maxNames {
		return
	}
	known[e.uid] = e
	for _, ip := range e.addrs {
		by[ip] = e
	}
}

// podEntry keeps nothing of pods that share a node's addresses, or that have ended: their addresses are others'.
func (c *Cache) podEntry(obj any) *entry {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	e := &entry{uid: p.UID, namespace: p.Namespace, name: p.Name}
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return e
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Zone() == "" {
			e.addrs = append(e.addrs, a.Unmap())
		}
	}
	e.labels, e.workload = labelsOf(p.Namespace, p.Labels), workloadOf(p)
	e.identity = identityOf(e.labels)
	return e
}

// serviceLabel is what Kubernetes labels a Service's EndpointSlices with.
const serviceLabel = "kubernetes.io/service-name"

// serviceEntry makes a Service an end with an identity, for Hubble UI shows no other ones. What a pod opens to a Service is one connection to
// the node, up to the Service: kube-proxy finds the pod behind it.
func serviceEntry(obj any) *entry {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return nil
	}
	e := &entry{uid: s.UID, namespace: s.Namespace, name: s.Name, workload: &flow.Workload{Kind: "Service", Name: s.Name}}
	e.labels = labelsOf(s.Namespace, map[string]string{serviceLabel: s.Name})
	e.identity = identityOf(e.labels)
	for _, ip := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil && a.Zone() == "" {
			e.addrs = append(e.addrs, a.Unmap())
		}
	}
	return e
}

// perPod are labels that each pod of a workload has another value of.
var perPod = []string{"pod-template-hash", "controller-revision-hash", "pod-template-generation", "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index",
	"controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name"}

// labelsOf writes labels as Hubble does.
func labelsOf(namespace string, labels map[string]string) []string {
	out := []string{"k8s:io.kubernetes.pod.namespace=" + namespace}
	for k, v := range labels {
		if !slices.Contains(perPod, k) && len(k)+len(v) <= maxLabel {
			out = append(out, "k8s:"+k+"="+v)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxLabels)]
}

// identityOf is a number for a set of labels, the same on each node, above those that Cilium reserves.
func identityOf(labels []string) uint32 {
	h := fnv.New32a()
	for _, l := range labels {
		_, _ = h.Write([]byte(l + "\n"))
	}
	return h.Sum32()>>8 | 1<<24
}

// workloadOf names what made a pod. A ReplicaSet of a Deployment has its name, and the hash of the pod's template.
func workloadOf(p *corev1.Pod) *flow.Workload {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil {
		return nil
	}
	w := &flow.Workload{Kind: owner.Kind, Name: owner.Name}
	if hash := p.Labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
		if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok {
			w.Kind, w.Name = "Deployment", name
		}
	}
	return w
}

// Cilium's numbers for ends that are no pods.
const (
	identityHost       = 1
	identityWorld      = 2
	identityRemoteNode = 6
)

func (e *entry) endpoint() *flow.Endpoint {
	out := &flow.Endpoint{Identity: e.identity, ClusterName: "default", Namespace: e.namespace, Labels: e.labels}
	if e.workload != nil {
		out.Workloads = []*flow.Workload{e.workload}
	}
	return out
}

// Endpoint returns the pod or the Service at an address, or that it is a node, or outside of the cluster; nil while nothing is known.
func (c *Cache) Endpoint(ip netip.Addr) *flow.Endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byAddr == nil {
		return nil
	}
	if e := c.byAddr[ip]; e != nil {
		out := e.endpoint()
		out.PodName = e.name
		return out
	}
	if e := c.byIP[ip]; e != nil {
		return e.endpoint()
	}
	if e := c.host(ip); e != nil {
		return e
	}
	return &flow.Endpoint{Identity: identityWorld, Labels: []string{"reserved:world"}}
}

// host returns what is at an address of a node; nil: none. The caller has the lock.
func (c *Cache) host(ip netip.Addr) *flow.Endpoint {
	if time.Since(c.hostsAt) > nodesTime {
		self, others := c.nodes()
		c.hosts, c.hostsAt = make(map[netip.Addr]*flow.Endpoint, len(self)+len(others)), time.Now()
		for _, a := range others {
			c.hosts[a] = &flow.Endpoint{Identity: identityRemoteNode, Labels: []string{"reserved:remote-node"}}
		}
		for _, a := range self {
			c.hosts[a] = &flow.Endpoint{Identity: identityHost, Labels: []string{"reserved:host"}}
		}
	}
	return c.hosts[ip]
}

// Service returns the Service at an address; nil: none.
func (c *Cache) Service(ip netip.Addr) *flow.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byIP[ip]; e != nil {
		return &flow.Service{Namespace: e.namespace, Name: e.name}
	}
	return nil
}
