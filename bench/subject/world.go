// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/sluice-cni/sluice/bench/traffic"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const (
	// FirstHostPort is the hostPort of the first pod; below the ephemeral range.
	FirstHostPort = 20000
	// containerPort is where pods serve.
	containerPort = 80
	// crrClients is how many clients open connections at once.
	crrClients = 4
)

// Options of a world.
type Options struct {
	Suite Suite
	// Pods is how many attachments, each with one hostPort, there are. Direct
	// has none, whatever it says.
	Pods int
	// Masquerade sets ipMasq of the bridge.
	Masquerade bool
	// Datagrams publishes each port for UDP too.
	Datagrams bool
	// LastPod sends the traffic to the pod attached last instead of the middle
	// one.
	LastPod bool
	// Exec starts the plugins, nil for libcni's way.
	Exec invoke.Exec
	// Conns is how many connections Hold will open at most.
	Conns int
	// Tools publishes the ports of iperf3 and sockperf on the server's pod too, and lets the server answer 32 clients at once.
	Tools bool
	// IPv4Only turns IPv6 off on the node and in its pods: what thousands of idle pods say by multicast would be in the figures.
	IPv4Only bool
	// Parallel is how many pods are attached at once, 0 for one.
	Parallel int
	// Kind is the traffic, HostPort if empty. Services is how many the node has rules for, where it is one to a Service.
	Kind     Kind
	Services int
	// Stateful gives the node rules that ask for the state of connections, so that netfilter tracks them.
	Stateful bool
	// Until is when to give up making pods, with ErrTime; the zero value is never.
	Until time.Time
}

// World is a client, a node of one suite and its pods, with the traffic agents
// ready. The caller must Close it.
type World struct {
	Options
	// SetUp is how long the attachments took.
	SetUp time.Duration

	lab            *netlab.Lab
	runtime        *netlab.Runtime   // of the first bridge
	bridges        []*netlab.Runtime // all of them
	serverNS       *netlab.NS
	target         netip.AddrPort
	server, client *traffic.Agent
	scratch        *netlab.Pod
	serial         int
	attached       []io.Closer // programs of floor
	observer       *observer   // of SluiceObserved
}

// Build makes a world. Progress is called after each attachment.
func Build(ctx context.Context, o Options, progress func(done int)) (_ *World, err error) {
	w := &World{Options: o}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s, %d pods: %w", o.Suite.Name, o.Pods, err), w.Close())
		}
	}()
	// Forwarding is on for all, since the plugins turn it on anyway.
	if w.lab, err = netlab.New(netlab.Options{ForwardIPv4: true}); err != nil {
		return nil, err
	}
	if err := w.disableIPv6(w.lab.Node.NS); err != nil {
		return nil, err
	}
	if err := w.bigUplink(); err != nil {
		return nil, err
	}
	if o.Stateful {
		if err := stateful(w.lab.Node); err != nil {
			return nil, err
		}
	}
	serverNS, listen, err := w.attachAll(ctx, progress)
	if err != nil {
		return nil, err
	}
	if err := w.moreQueues(serverNS); err != nil {
		return nil, err
	}
	clientNS, serverNS, listen, err := w.ends(ctx, serverNS, listen)
	if err != nil {
		return nil, err
	}
	w.serverNS = serverNS
	if err := w.serveIn(clientNS, serverNS, listen); err != nil {
		return nil, err
	}
	// Everything is learned, loaded and resolved before the first measurement.
	if _, _, err := w.RR(50 * time.Millisecond); err != nil {
		return nil, fmt.Errorf("first traffic: %w", err)
	}
	if err := w.observe(); err != nil {
		return nil, err
	}
	return w, nil
}

// stateful loads rules like those of kube-proxy and of a host's firewall.
func stateful(node *netlab.Node) error {
	const rules = `table inet stateful {
	chain input { type filter hook input priority 0; ct state established,related accept; ct state invalid drop; }
	chain forward { type filter hook forward priority 0; ct state established,related accept; ct state invalid drop; }
}`
	return node.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("load stateful rules: %w: %s", err, out)
		}
		return nil
	})
}

// attachAll makes the pods and returns where the server belongs.
func (w *World) attachAll(ctx context.Context, progress func(int)) (*netlab.NS, netip.AddrPort, error) {
	node := netlab.IP4(w.lab.Client().Uplink.Node)
	w.target = netip.AddrPortFrom(node, FirstHostPort)
	switch {
	case w.Suite.Name == Routed:
		return w.routed(false)
	case w.Suite.Name == Floor, w.Suite.Name == FloorLearned:
		return w.floor(w.Suite.Name == FloorLearned)
	case w.Suite.BinDir == "":
		return w.lab.Node.NS, w.target, nil
	}
	if err := w.configure(); err != nil {
		return nil, netip.AddrPort{}, err
	}
	return w.attachPods(ctx, progress)
}

// configure writes the node's configuration.
func (w *World) configure() error { return w.Suite.Configure(w.lab.Node, w.Pods, w.Conns) }

// Configure writes the configuration of a node with so many pods and connections, in the node's own mount namespace: the maps have room
// for fewer unless they are told otherwise (docs/configuration.md).
func (s Suite) Configure(node *netlab.Node, pods, conns int) error {
	conf := object{}
	if s.NodeConfig != "" {
		if err := json.Unmarshal([]byte(s.NodeConfig), &conf); err != nil {
			return err
		}
	}
	sizes := object{}
	if pods > usualPods {
		sizes["endpoints"], sizes["hostPorts"] = roomPerPod*pods, 2*pods
	}
	if conns > usualConns {
		sizes["conntrack"] = roomPerConn * conns
	}
	if len(sizes) > 0 {
		conf["mapSizes"] = sizes
	}
	if len(conf) == 0 {
		return nil
	}
	text, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	return node.Do(func() error { return os.WriteFile(nodeconf.DefaultPath, text, 0o644) })
}

// bigUplink does for BIG TCP what the plugin leaves to the administrator.
func (w *World) bigUplink() error {
	if w.Suite.BridgeKeys["bigTCP"] != true {
		return nil
	}
	return w.lab.SetMaxSegmentIPv4(rtnl.BigSegment)
}

// moreQueues gives all veths that traffic passes more queues. No key of a plugin does: see docs/dev/performance.md.
func (w *World) moreQueues(server *netlab.NS) error {
	if w.Suite.Queues == 0 {
		return nil
	}
	set := func() error { return netlab.SetQueues(w.Suite.Queues) }
	return errors.Join(w.lab.Node.Do(set), server.Do(set), w.lab.Client().Do(set))
}

// RR measures round trips through the hostPort for d.
func (w *World) RR(d time.Duration) (p50, p99 time.Duration, err error) {
	r, err := w.call(traffic.Request{Op: "rr", Addr: w.target, For: d})
	return r.P50, r.P99, err
}

// CRR measures new connections per second for d.
func (w *World) CRR(d time.Duration) (float64, error) {
	r, err := w.call(traffic.Request{Op: "crr", Addr: w.target, For: d, Conns: crrClients})
	return r.Rate, err
}

// Stream measures one TCP stream for d, in bits per second.
func (w *World) Stream(d time.Duration) (float64, error) {
	r, err := w.call(traffic.Request{Op: "stream", Addr: w.target, For: d})
	return r.Rate, err
}

// call measures, with the observer if the world has one.
func (w *World) call(r traffic.Request) (out traffic.Reply, err error) {
	err = w.observed(func() error {
		out, err = w.client.Call(r)
		return err
	})
	return out, err
}

// Lab is the node and its client.
func (w *World) Lab() *netlab.Lab { return w.lab }

// Target is what the client talks to.
func (w *World) Target() netip.AddrPort { return w.target }

// Greet opens a UDP flow through the hostPort, from that port of the client.
func (w *World) Greet(from uint16) error {
	_, err := w.client.Call(traffic.Request{Op: "greet", Addr: w.target, From: from})
	return err
}

// Delivered is how many packets have come to the server's sockets.
func (w *World) Delivered() (uint64, error) {
	r, err := w.server.Call(traffic.Request{Op: "delivered"})
	return r.Packets, err
}

// HasChain says whether there are plugins to time.
func (w *World) HasChain() bool { return w.runtime != nil }

// AddDel attaches one more pod and detaches it, and returns how long libcni
// took for each. The pod's namespace is used again and again, so that the
// kernel's dismantling of namespaces does not run into the next measurement.
func (w *World) AddDel(ctx context.Context) (add, del time.Duration, err error) {
	w.serial++
	a := w.attachment(fmt.Sprintf("scratch%d", w.serial), w.scratch.Path, FirstHostPort+w.Pods)
	start := time.Now()
	_, err = w.runtime.Add(ctx, a)
	add = time.Since(start)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: ADD: %w", w.Suite.Name, err)
	}
	start = time.Now()
	err = w.runtime.Del(ctx, a)
	del = time.Since(start)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: DEL: %w", w.Suite.Name, err)
	}
	return add, del, nil
}

// Close ends the agents and drops the namespaces with everything in them.
func (w *World) Close() error {
	var errs []error
	for _, a := range []*traffic.Agent{w.client, w.server} {
		if a != nil {
			errs = append(errs, a.Stop())
		}
	}
	if w.observer != nil {
		errs = append(errs, w.observer.Close())
	}
	for _, l := range w.attached {
		errs = append(errs, l.Close())
	}
	if w.lab != nil {
		errs = append(errs, w.lab.Close())
	}
	return errors.Join(errs...)
}
