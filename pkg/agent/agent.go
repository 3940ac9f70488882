// SPDX-License-Identifier: Apache-2.0

// Package agent is the run loop of the node agent: it brings the node to what configuration and Node objects say, step by step.
//
// cmd/sluice-agent runs it. Each step has a room of its own below this one. No packet and no ADD waits for it: what it made stays while it is
// away, and while the API server is.
package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
	"github.com/sluice-cni/sluice/pkg/agent/conflist"
	"github.com/sluice-cni/sluice/pkg/agent/garbage"
	"github.com/sluice-cni/sluice/pkg/agent/health"
	"github.com/sluice-cni/sluice/pkg/agent/installer"
	"github.com/sluice-cni/sluice/pkg/agent/ipamaccess"
	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/masquerade"
	"github.com/sluice-cni/sluice/pkg/agent/netpol"
	"github.com/sluice-cni/sluice/pkg/agent/nodes"
	"github.com/sluice-cni/sluice/pkg/agent/observer"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/agent/routes"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// Places of the node that are not in the configuration.
const (
	cniState   = "/var/lib/cni" // libcni's cache, and host-local's addresses
	ownState   = "/var/lib/sluice"
	exemptNote = "/etc/sluice/.agent.json"
)

const (
	// lookAgain is how often routes and files are compared with what they must be, if nothing changes.
	lookAgain = time.Minute
	// calm is the least time from one look to the next: a node whose object changes all the time must not keep the others busy.
	calm = 250 * time.Millisecond
	// whileHeld is how often the pods of a former podCIDR are looked for: until they are gone, new ones get addresses of it too.
	whileHeld = 5 * time.Second
	// shortestRetry doubles after each failure, up to longestRetry.
	shortestRetry = time.Second
	longestRetry  = time.Minute
	// noAnswerTime is how long the API server may be silent at the start before that is a problem.
	noAnswerTime = 30 * time.Second
)

// Options are what Run needs besides the configuration.
type Options struct {
	Config *agentconf.Config
	Kube   *rest.Config
	Node   string // name of the Node object
	// Programs is the directory with the programs: sluice-cni and those that belong to it, and sluice.
	Programs string
	Log      *log.Logger
}

// agent is one run.
type agent struct {
	Options
	client    *kube.Client
	watcher   *nodes.Watcher
	nodes     <-chan struct{} // have changed
	installer *installer.Installer
	exempt    *masquerade.Exempt
	router    routes.Router
	report    *report.Reporter
	health    *health.Server   // nil: nowhere
	observer  *observer.Server // nil: nowhere
	collector *garbage.Collector
	ipam      *ipamaccess.Access // nil: no cluster-wide addresses
	policies  *netpol.Controller // nil: not enforced
	datapath  *loader.Datapath   // of the tables that policies are written to; nil: none yet
	addresses chan struct{}      // the node's addresses are others

	mu      sync.Mutex
	settled bool // the last look left nothing to do
	again   time.Duration
}

// Run works until ctx ends. It returns an error only if it cannot start: what fails later is reported and tried again.
func Run(ctx context.Context, o Options) error {
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	for _, task := range a.tasks() {
		tasks.Go(func() { task(ctx) })
	}
	a.loop(ctx)
	return nil
}

func newAgent(o Options) (*agent, error) {
	c := o.Config
	client, err := kube.New(o.Kube)
	if err != nil {
		return nil, err
	}
	a := &agent{
		Options: o, client: client, report: report.New(client, o.Node, o.Log),
		installer: installer.New(o.Programs, c.Paths.Bin(), c.Paths.BinDir, o.Log),
		exempt:    newExempt(o),
		ipam:      newAccess(o, client),
		addresses: make(chan struct{}, 1),
	}
	if a.watcher, err = nodes.New(client, o.Node); err != nil {
		return nil, err
	}
	a.nodes = a.watcher.Changed()
	a.policies = a.newPolicies()
	if a.router, err = newRouter(o); err != nil {
		return nil, err
	}
	a.collector = &garbage.Collector{
		Network: c.Network.Name, CacheDir: c.Paths.On(cniState), BinDirs: []string{c.Paths.BinDir}, Grace: garbage.Grace, Log: o.Log,
		Pods:      func(ctx context.Context) (map[string]bool, error) { return client.Pods(ctx, o.Node) },
		Sandboxes: garbage.CRI(c.RuntimeEndpoint, c.Paths.On),
	}
	if c.Health.Address != "" {
		if a.health, err = health.New(c.Health.Address, health.Checks{Ready: a.ready, Metrics: a.metrics}); err != nil {
			return nil, err
		}
	}
	if c.Observe.Enabled {
		a.observer, err = observer.New(a.observe())
	}
	return a, err
}

// newAccess returns nil if the configuration has no ServiceAccount for cluster-wide addresses.
func newAccess(o Options, client *kube.Client) *ipamaccess.Access {
	c := o.Config
	namespace, name, ok := strings.Cut(c.IPAM.ServiceAccount, "/")
	if !ok {
		return nil
	}
	return &ipamaccess.Access{
		Conf: c.Paths.Conf(), ConfDir: c.Paths.ConfDir, Namespace: namespace, Server: o.Kube,
		Token: func(ctx context.Context, lifetime time.Duration) (string, time.Time, error) {
			return client.Token(ctx, namespace, name, o.Node, lifetime)
		},
	}
}

func newExempt(o Options) *masquerade.Exempt {
	p := o.Config.Paths
	return masquerade.New(p.On(nodeconf.DefaultPath), p.On(exemptNote), filepath.Join(o.Programs, "sluice"))
}

func newRouter(o Options) (routes.Router, error) {
	c := o.Config
	return routes.New(string(c.Routing), routes.Config{
		ClusterCIDRs: c.ClusterCIDRs, ServiceCIDRs: c.ServiceCIDRs, StateDir: c.Paths.On(ownState),
		VXLAN:     routes.VXLAN{VNI: int(c.VXLAN.VNI), Port: int(c.VXLAN.Port), Device: c.VXLAN.Device},
		WireGuard: routes.WireGuard{Port: int(c.WireGuard.Port), Device: c.WireGuard.Device, KeyRotation: time.Duration(c.WireGuard.KeyRotation)},
	}, o.Log)
}

// tasks run beside the loop.
func (a *agent) tasks() []func(context.Context) {
	tasks := []func(context.Context){
		a.watcher.Run,
		a.report.Run,
		a.watchAddresses,
		a.watchPorts,
		func(ctx context.Context) {
			if err := a.installer.Run(ctx); err != nil {
				a.Log.Error("watch of the plugins' directory", log.Error(err))
			}
		},
	}
	if a.health != nil {
		tasks = append(tasks, func(ctx context.Context) {
			if err := a.health.Run(ctx); err != nil {
				a.Log.Error("health server", log.Error(err))
			}
		})
	}
	if a.observer != nil {
		tasks = append(tasks, func(ctx context.Context) {
			if err := a.observer.Run(ctx); err != nil {
				a.Log.Error("observer", log.Error(err))
			}
		})
	}
	if a.Config.Garbage.Interval > 0 {
		tasks = append(tasks, a.collect)
	}
	if a.policies != nil {
		tasks = append(tasks, a.policies.Run)
	} else {
		tasks = append(tasks, a.lookForUnenforced)
	}
	return tasks
}

// loop looks at the node whenever something has changed, after a failure, and once a minute.
func (a *agent) loop(ctx context.Context) {
	retry := shortestRetry
	started := time.Now()
	for ctx.Err() == nil {
		ok := a.look(ctx)
		a.noteAnswer(time.Since(started))
		wait := lookAgain + rand.N(lookAgain/4) // jitter, so that nodes do not ask at one time
		if ok {
			retry = shortestRetry
			if a.again > 0 {
				wait = min(wait, a.again)
			}
		} else {
			wait = retry + rand.N(retry/2)
			retry = min(2*retry, longestRetry)
		}
		sleep(ctx, calm)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-a.nodes:
			retry = shortestRetry
		case <-a.addresses:
			a.exempt.Look()
		case <-a.installer.Changed():
			a.report.Count(report.Reinstalls, 1)
		}
		timer.Stop()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// noteAnswer says whether the API server has been silent since the start, or has failed since.
func (a *agent) noteAnswer(since time.Duration) {
	failing := a.watcher.Failing()
	if failing == "" && (a.watcher.Synced() || since < noAnswerTime) {
		a.report.Clear("nodes")
		return
	}
	if failing == "" {
		failing = "no answer yet"
	}
	a.report.Problem("nodes", report.NoAnswer, "the node stays as it is: "+failing)
}

// look does each step in order: what the network's configuration needs comes before it. It reports whether all is done.
func (a *agent) look(ctx context.Context) (ok bool) {
	defer func() {
		a.mu.Lock()
		a.settled = ok
		a.mu.Unlock()
	}()
	ready := a.install(ctx)
	if !a.watcher.Synced() { // nothing is known yet: all stays as it was left
		return false
	}
	v := a.watcher.View()
	a.report.SetNode(v.UID)
	if a.ipam != nil && v.UID != "" { // pods of other networks do not wait for it
		a.step("ipam", report.IPAMAccessFailed, a.ipam.Ensure(ctx))
	}
	mine := a.checkSelf(v)
	if v.UID == "" { // not in the cluster, or not yet: the routes of running pods stay
		return false
	}
	exempt := a.exemptions(ctx)
	a.checkExempt(v)
	ready = exempt && ready
	ready = a.route(ctx, v) && ready
	if exempt { // the datapath looks at devices that the routes have come with; otherwise this does nothing
		if err := a.exempt.Resync(ctx); err != nil {
			ready = a.step("masquerade", report.MasqueradeFailed, err)
		}
	}
	if !mine || !ready {
		return false
	}
	return a.network(v)
}

// step reports what came of a step.
func (a *agent) step(name string, reason report.Reason, err error) bool {
	if err != nil {
		a.report.Problem(name, reason, err.Error())
		return false
	}
	a.report.Clear(name)
	return true
}

func (a *agent) install(ctx context.Context) bool {
	written, err := a.installer.Ensure(ctx)
	if len(written) > 0 {
		a.Log.Info("plugins installed", log.Any("names", written), log.String(log.KeyPath, a.Config.Paths.BinDir))
	}
	return a.step("install", report.InstallFailed, err)
}

// exemptions keeps what is not masqueraded. Without a writable /etc no look will ever do better: that is no reason to wait. Pods then see
// node addresses of each other, and reach each other.
func (a *agent) exemptions(ctx context.Context) bool {
	err := a.exempt.Ensure(ctx, a.Config.Exempt())
	return a.step("masquerade", report.MasqueradeFailed, err) || errors.Is(err, unix.EROFS)
}

// route brings the routes up to date. Facts of other nodes that cannot be used are reported, and keep nothing from success.
func (a *agent) route(ctx context.Context, v nodes.View) bool {
	a.step("ports of tunnels", report.RoutesFailed, keepTunnels(a.Config)) // before there are devices; routes do not wait for it
	wanted, err := a.router.Sync(ctx, v.Self, v.Others)
	a.again = wanted.Again
	if wanted.Resync {
		a.exempt.Look()
	}
	a.report.Count(report.RouteSyncs, 1)
	refused, err := routes.NodeErrors(err)
	if len(refused) > 0 {
		a.report.Problem("other nodes", report.NodesRefused, fmt.Sprintf("%d facts of other nodes are not used; the first: %v", len(refused), refused[0]))
	} else {
		a.report.Clear("other nodes")
	}
	ok := a.step("routes", report.RoutesFailed, err)
	missing := nodes.Wanting(v.Self, wanted.SelfAnnotations)
	if len(missing) == 0 {
		a.report.Clear("annotations")
		return ok
	}
	// Other nodes need the annotations, this one does not. Its pods start while the API server refuses or is away.
	a.step("annotations", report.AnnotationsFailed, a.client.Annotate(ctx, a.Node, missing))
	return ok
}

// network writes the network's configuration, last of all.
func (a *agent) network(v nodes.View) bool {
	c := a.Config
	mtu := c.Network.MTU
	if mtu == 0 {
		uplink, err := uplinkMTU(v.Self.InternalIPs)
		if err != nil {
			return a.step("network", report.NetworkFailed, fmt.Errorf("network.mtu: 0: find the uplink: %w", err))
		}
		mtu = a.router.MTU(uplink)
	}
	content, err := conflist.Build(c.Network, c.NetworkPolicy.Enabled, v.Self.PodCIDRs, mtu)
	if err != nil {
		return a.step("network", report.NetworkFailed, err)
	}
	path := filepath.Join(c.Paths.Conf(), c.Network.File)
	held, err := a.held(path, v)
	if err != nil {
		return a.step("network", report.NetworkFailed, err)
	}
	if held {
		if a.again == 0 || a.again > whileHeld {
			a.again = whileHeld
		}
		return true
	}
	changed, err := writeNetwork(path, content)
	if changed {
		a.report.Count(report.NetworkWrites, 1)
		a.Log.Info("network written", log.String(log.KeyPath, path), log.Any("podCIDRs", v.Self.PodCIDRs), log.Int("mtu", mtu))
	}
	return a.step("network", report.NetworkFailed, err)
}
