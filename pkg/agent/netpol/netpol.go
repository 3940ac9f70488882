// SPDX-License-Identifier: Apache-2.0

// Package netpol enforces NetworkPolicies: it follows pods, namespaces and policies of the whole cluster, has pkg/networkpolicy compile
// them, and hands the changes to the datapath's tables.
//
// Every node decides for itself. While the API server is away, or the agent is, the tables stay as they are. docs/dev/design/networkpolicy.md
// describes the order of what happens.
package netpol

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

const (
	// batchDelay is how long the first change of a batch waits for others: a controller changes several objects at once.
	batchDelay = 3 * time.Millisecond
	// maxBatch is how many events a batch has at most. A pod may be closed for as long as its batch takes to apply.
	maxBatch = 200
	// settleTime is how long numbers that were removed are not used again: packets that were on their way have passed by then.
	settleTime = 2 * time.Second
	// tickTime is how often what is not urgent is done.
	tickTime = time.Second
	// shortestRetry doubles after each generation that could not be applied, up to longestRetry. The first ADD of a node may load the
	// programs, and pods are closed until the tables are there, so the agent does not wait for long.
	shortestRetry = 250 * time.Millisecond
	longestRetry  = 5 * time.Second
	// patience is how long tables may fail, or the API server may be silent, before it is a problem: programs are replaced, and API
	// servers start again, every now and then.
	patience = 15 * time.Second
	// renewTime is how long a podCIDR that is in no known network of pods waits until everything is read again for it.
	renewTime = 10 * time.Minute
)

// Tables is one generation of the datapath's tables. A new one begins empty, beside the one in force.
type Tables interface {
	// Apply makes changes in their order. A pod goes from its set in the generation in force to the one that is written at once.
	Apply(ctx context.Context, changes []networkpolicy.Change) error
	// Finish forgets all earlier generations, and the pods and namespaces that this one does not have. It is called after the first batch.
	Finish(ctx context.Context) error
}

// Source has the objects; it is a *kube.Client.
type Source interface {
	List(ctx context.Context, r kube.Resource, note func(runtime.Object)) (version string, err error)
	Watch(ctx context.Context, r kube.Resource, version string) (watch.Interface, error)
}

// Cluster is what is known of the nodes.
type Cluster struct {
	NodeAddrs   []netip.Addr // of all nodes, those of their tunnels included
	PodNetworks []netip.Prefix
	Services    []netip.Prefix // where a pod's packets may get another destination
}

// Options are what a Controller needs.
type Options struct {
	Source Source
	Node   string // name of this node
	// Begin begins a new generation of tables. It fails while the datapath has no programs.
	Begin func(ctx context.Context) (Tables, error)
	// Cluster is false while the nodes are not known. NodesChanged has a value after they have changed.
	Cluster      func() (Cluster, bool)
	NodesChanged <-chan struct{}
	Report       *report.Reporter
	Log          *log.Logger
}

// Controller enforces policies while it runs. WriteMetrics may be called at any time.
type Controller struct {
	Options
	metrics metrics
}

// New returns a Controller that does nothing before Run.
func New(o Options) *Controller { return &Controller{Options: o} }

// Run works until ctx ends. Nothing is removed from the tables then.
func (c *Controller) Run(ctx context.Context) {
	for ctx.Err() == nil {
		cluster, ok := c.awaitNodes(ctx)
		if !ok {
			return
		}
		r := newRun(c, cluster)
		r.work(ctx)
	}
}

// awaitNodes returns false if ctx ends before the nodes are known.
func (c *Controller) awaitNodes(ctx context.Context) (Cluster, bool) {
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	for {
		if cluster, ok := c.Cluster(); ok {
			return cluster, true
		}
		select {
		case <-ctx.Done():
			return Cluster{}, false
		case <-c.NodesChanged:
		case <-tick.C:
		}
	}
}

// event is something that was heard. do is called by the goroutine that has the engine.
type event struct {
	at time.Time
	do func()
}

// run is the time from the lists to the end, or until everything has to be read again. One goroutine has all of it.
type run struct {
	*Controller
	engine   *networkpolicy.Engine
	networks []netip.Prefix
	objects
	events chan event

	waiting int       // events since the last commit
	since   time.Time // when the first of them was heard
	renew   time.Time // when to read everything again, if ever

	tables   Tables // nil: to be begun
	settling []settling
	failing  time.Time // when the tables began to fail; zero: they do not
	failure  error
	retry    time.Duration
	retryAt  time.Time
	checked  bool            // problems are those of the last batch
	suspects map[string]bool // pods that were closed at the last check
}

// settling is a batch that is applied, and has not settled.
type settling struct {
	batch   networkpolicy.Batch
	applied time.Time
}

func newRun(c *Controller, cluster Cluster) *run {
	r := &run{
		Controller: c, networks: cluster.PodNetworks, events: make(chan event, maxBatch), objects: newObjects(), retry: shortestRetry,
		engine: networkpolicy.New(networkpolicy.Config{Node: c.Node, PodNetworks: cluster.PodNetworks}),
	}
	r.engine.SetNodeAddrs(cluster.NodeAddrs)
	r.engine.SetServices(cluster.Services)
	return r
}

func (r *run) work(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer stop()
	for _, resource := range resources {
		followers.Go(func() { r.follow(ctx, resource) })
	}
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	batch, again := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	defer batch.Stop()
	defer again.Stop()
	for r.renew.IsZero() || time.Now().Before(r.renew) {
		select {
		case <-ctx.Done():
			return
		case e := <-r.events:
			if r.take(e); r.waiting == 1 {
				batch.Reset(batchDelay)
			}
		case <-r.NodesChanged:
			if r.nodes(); r.waiting == 1 {
				batch.Reset(batchDelay)
			}
		case <-batch.C:
			r.drain()
			r.commit(ctx)
		case <-again.C:
			r.commit(ctx)
		case now := <-tick.C:
			r.settle(now)
			r.check()
		}
		if r.waiting >= maxBatch {
			r.commit(ctx)
		}
		if r.tables == nil && !r.retryAt.IsZero() {
			again.Reset(time.Until(r.retryAt))
		}
	}
	r.Log.Info("network policies: there are new networks of pods, everything is read again", log.Any("networks", r.networks))
}

func (r *run) take(e event) {
	if e.do(); r.waiting == 0 {
		r.since = e.at
	}
	r.waiting++
}

// drain takes what is there already, without waiting for more.
func (r *run) drain() {
	for r.waiting < maxBatch {
		select {
		case e := <-r.events:
			r.take(e)
		default:
			return
		}
	}
}

// nodes tells the engine of the nodes' addresses. The networks of pods are the engine's for as long as it lives. No verdict of a
// NetworkPolicy depends on them, so that a new one can wait.
func (r *run) nodes() {
	cluster, ok := r.Cluster()
	if !ok {
		return
	}
	r.take(event{time.Now(), func() { r.engine.SetNodeAddrs(cluster.NodeAddrs) }})
	isNew := func(p netip.Prefix) bool {
		return !slices.ContainsFunc(r.networks, func(n netip.Prefix) bool { return n.Bits() <= p.Bits() && n.Contains(p.Addr()) })
	}
	if r.renew.IsZero() && slices.ContainsFunc(cluster.PodNetworks, isNew) {
		r.renew = time.Now().Add(renewTime)
	}
}
