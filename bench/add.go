// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// object is a part of a network configuration.
type object = map[string]any

// interfacePlugin is a plugin whose ADD is timed, with what it needs.
type interfacePlugin struct {
	name string
	keys object
	// kind is the device it makes, where a kernel may lack it.
	kind string
	// before are the arguments of ip(8) for what the node must have.
	before string
	// settle is how long to wait after each verb, at least, where one of the
	// peers leaves work to the kernel that would be in the other's figure.
	settle time.Duration
	// chained are the plugins after it.
	chained []object
}

// onBridge and onPTP are the names of fullChains.
const onBridge, onPTP = "full-chain", "full-chain-ptp"

// fullChains are networks whose ADD does all that Sluice's plugins do for a pod: a published port, masquerade, admission and limits
// both ways. They are timed only where -plugins names them.
func fullChains() []interfacePlugin {
	return []interfacePlugin{
		fullChain(onBridge, object{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true}),
		fullChain(onPTP, object{"type": "ptp", "ipMasq": true}),
	}
}

func fullChain(name string, keys object) interfacePlugin {
	const mbit = 1_000_000
	return interfacePlugin{
		name: name,
		keys: keys,
		chained: []object{
			{"type": "portmap", "capabilities": object{"portMappings": true}},
			{"type": "firewall"},
			{"type": "bandwidth", "ingressRate": 100 * mbit, "ingressBurst": 10 * mbit, "egressRate": 100 * mbit, "egressBurst": 10 * mbit},
		},
	}
}

// types are the names of the programs it runs, beside the IPAM plugin's.
func (i interfacePlugin) types() []string {
	if i.chained == nil {
		return []string{i.name}
	}
	names := []string{i.keys["type"].(string)}
	for _, c := range i.chained {
		names = append(names, c["type"].(string))
	}
	return names
}

func interfacePlugins() []interfacePlugin {
	return []interfacePlugin{
		{name: "bridge", keys: object{"bridge": "cni0", "isGateway": true}},
		{name: "ptp"},
		{name: "macvlan", keys: object{"master": "eth0"}, kind: "macvlan"},
		{name: "ipvlan", keys: object{"master": "eth0"}, kind: "ipvlan"},
		{name: "vlan", keys: object{"master": "eth0", "vlanId": 100}, kind: "vlan"},
		{name: "dummy", kind: "dummy"},
		// Upstream makes a namespace for a moment; its end takes the link lock.
		{name: "host-device", keys: object{"device": "nic0"}, before: "link add nic0 type veth peer name wire0", settle: 300 * time.Millisecond},
		{name: "tap"},
	}
}

// perNetwork is how many pods a network has room for.
func (i interfacePlugin) perNetwork() int {
	if _, bridged := i.keys["bridge"]; bridged {
		return subject.BridgePods
	}
	return math.MaxInt
}

// conflist is the network with number n, each with a bridge and addresses of its own.
func (i interfacePlugin) conflist(n int, dual bool) ([]byte, error) {
	ranges := [][]object{{{"subnet": fmt.Sprintf("10.%d.0.0/16", 1+n)}}}
	routes := []object{{"dst": "0.0.0.0/0"}}
	if dual {
		ranges = append(ranges, []object{{"subnet": fmt.Sprintf("fd00:10:%x::/64", 1+n)}})
		routes = append(routes, object{"dst": "::/0"})
	}
	conf := object{"type": i.name, "ipam": object{"type": "host-local", "ranges": ranges, "routes": routes}}
	maps.Copy(conf, i.keys)
	name := "bench"
	if n > 0 {
		name = fmt.Sprintf("bench%d", n)
		conf["bridge"] = fmt.Sprintf("cni%d", n)
	}
	return json.Marshal(object{"cniVersion": "1.0.0", "name": name, "plugins": append([]object{conf}, i.chained...)})
}

// adds is one run of "bench add".
type adds struct {
	common
	cycles int
	pods   []int
	dual   bool
	pause  time.Duration
	out    string
	run    report.Run
}

func runAdd(ctx context.Context, args []string) (err error) {
	a := &adds{common: common{only: []string{subject.Reference, subject.Sluice}}}
	f := flag.NewFlagSet("bench add", flag.ContinueOnError)
	a.register(f, "reference,sluice")
	f.IntVar(&a.cycles, "cycles", 40, "ADD/DEL pairs for each plugin and peer")
	f.BoolVar(&a.dual, "dual", false, "an address of each family: the reference then waits for duplicate address detection")
	f.DurationVar(&a.pause, "pause", 0, "wait after each ADD and DEL: for what the kernel does in the background, and so long lives a pod")
	pods := f.String("pods", "1", "pods of the node, with the one that is timed, such as 10,1000")
	guest := f.String("guest", "", "do it in a virtual machine with this kernel `series` (6.12) instead, whose clock counts instructions: for devices that this kernel lacks, and for figures that repeat")
	f.StringVar(&a.out, "out", filepath.Join("bench", "out", "add.json"), "JSON report")
	only := f.String("plugins", "", "plugins to time (default: all)")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	todo, err := choose(*only)
	if err != nil {
		return err
	}
	if a.pods, err = parseInts(*pods); err != nil {
		return fmt.Errorf("-pods: %w", err)
	}
	for _, i := range todo {
		if _, one := i.keys["device"]; one && !slices.Equal(a.pods, []int{1}) {
			return fmt.Errorf("-pods: the node has one device for %s: name others with -plugins", i.name)
		}
	}
	a.plugins = append(a.plugins, "host-local")
	for _, i := range todo {
		for _, t := range i.types() {
			if !slices.Contains(a.plugins, t) {
				a.plugins = append(a.plugins, t)
			}
		}
	}
	if *guest != "" {
		return addInGuest(ctx, *guest, f, a)
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.prepare(ctx); err != nil {
		return err
	}
	a.describe(os.Stdout)
	var done []interfacePlugin
	for _, i := range todo {
		var missing error
		for _, pods := range a.pods {
			if missing, err = a.time(ctx, i, pods); err != nil {
				return fmt.Errorf("%s with %d pods: %w", i.name, pods, err)
			}
		}
		if missing != nil {
			fmt.Printf("%s is left out: %v\n", i.name, missing)
			continue
		}
		done = append(done, i)
	}
	return a.write(os.Stdout, done)
}

// choose returns the plugins of a list of names, all for an empty one.
func choose(names string) (todo []interfacePlugin, err error) {
	all := interfacePlugins()
	if names == "" {
		return all, nil
	}
	all = append(all, fullChains()...)
	for name := range strings.SplitSeq(names, ",") {
		at := slices.IndexFunc(all, func(i interfacePlugin) bool { return i.name == name })
		if at < 0 {
			return nil, fmt.Errorf("-plugins: unknown plugin %q", name)
		}
		todo = append(todo, all[at])
	}
	return todo, nil
}

// place is a node of one peer with a pod whose namespace is used again and again.
type place struct {
	suite   subject.Suite
	lab     *netlab.Lab
	runtime *netlab.Runtime
	timer   *timer
	pod     *netlab.Pod
}

// time takes all cycles of one plugin, the peers in turn, on a node that has pods
// with the one of the cycle. missing says that this kernel lacks the device.
func (a *adds) time(ctx context.Context, i interfacePlugin, pods int) (missing, err error) {
	var places []*place
	defer func() {
		for _, p := range places {
			err = errors.Join(err, p.lab.Close())
		}
	}()
	for _, s := range a.suites {
		p, err := a.build(ctx, s, i, pods)
		if p != nil {
			places = append(places, p)
		}
		if errors.Is(err, rtnl.ErrNotSupported) {
			return err, nil
		}
		if err != nil {
			return nil, err
		}
	}
	var m *mover
	device, moves := i.keys["device"].(string) // of the node, which goes to the pod
	if moves {
		if m, err = newMover(i); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, m.close()) }()
	}
	for cycle := range a.cycles + 1 {
		for _, p := range places {
			if err := a.cycle(ctx, i, p, cycle, pods); err != nil {
				return nil, fmt.Errorf("%s: %w", p.suite.Name, err)
			}
		}
		slices.Reverse(places)
		if m != nil {
			took, err := m.once(device)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", oneMove, err)
			}
			a.run.Add(i.name, oneMove, pods, report.Add, millis(took))
		}
	}
	return nil, nil
}

func (a *adds) build(ctx context.Context, s subject.Suite, i interfacePlugin, pods int) (*place, error) {
	l, err := netlab.New(netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
	if err != nil {
		return nil, err
	}
	p := &place{suite: s, lab: l, timer: &timer{Exec: netlab.NewExec(nil)}}
	if err := l.Node.Do(func() error { return prepareNode(i) }); err != nil {
		return p, err
	}
	if err := s.Configure(l.Node, pods, 0); err != nil {
		return p, err
	}
	for n, first := 0, 0; first < pods; n++ {
		list, err := i.conflist(n, a.dual)
		if err != nil {
			return p, err
		}
		if p.runtime, err = l.Node.CNI(netlab.CNIOptions{Path: []string{s.BinDir}, Conflist: list, Exec: p.timer}); err != nil {
			return p, err
		}
		end := first + min(i.perNetwork(), pods-first)
		// The last one is the pod of the cycles, so that is on the last network.
		if err := p.fill(ctx, i, first, min(end, pods-1), pods >= subject.ManyPods); err != nil {
			return p, err
		}
		first = end
	}
	p.pod, err = l.Node.NewPod("pod")
	return p, err
}

// fill attaches pods that stay, with the numbers from first to before end. With shared, a namespace has subject.NetnsPods of them.
func (p *place) fill(ctx context.Context, i interfacePlugin, first, end int, shared bool) error {
	perNetns := 1
	if shared {
		perNetns = subject.NetnsPods
	}
	path := ""
	for n := range end - first {
		name := fmt.Sprintf("other%d", first+n)
		if n%perNetns == 0 {
			pod, err := p.lab.Node.NewPod(name)
			if err != nil {
				return err
			}
			path = pod.Path
			if err := pod.Close(); err != nil { // its path keeps it
				return err
			}
		}
		att := i.attachment(name, path, subject.FirstHostPort+first+n)
		att.IfName = fmt.Sprintf("eth%d", n%perNetns)
		_, err := p.runtime.Add(ctx, att)
		p.timer.take()
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// attachment has a published port, if the chain publishes any.
func (i interfacePlugin) attachment(id, netns string, hostPort int) netlab.Attachment {
	att := netlab.Attachment{ContainerID: id, NetNS: netns}
	if i.chained != nil {
		att.Capabilities = map[string]any{"portMappings": []object{{"hostPort": hostPort, "containerPort": 80, "protocol": "tcp"}}}
	}
	return att
}

// prepareNode asks for the kind of device and makes what the plugin needs.
func prepareNode(i interfacePlugin) error {
	if i.kind != "" {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		if err := h.Supports(i.kind); err != nil {
			return err
		}
	}
	if i.before == "" {
		return nil
	}
	_, err := netlab.Run("ip", strings.Fields(i.before)...)
	return err
}

func (a *adds) cycle(ctx context.Context, i interfacePlugin, p *place, cycle, pods int) error {
	att := i.attachment(fmt.Sprintf("c%d", cycle), p.pod.Path, 8080)
	for _, v := range []struct {
		name      string
		do        func() error
		wall, cpu report.Metric
	}{
		{"ADD", func() error { _, err := p.runtime.Add(ctx, att); return err }, report.Add, report.AddCPU},
		{"DEL", func() error { return p.runtime.Del(ctx, att) }, report.Del, report.DelCPU},
	} {
		if err := v.do(); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		// Of the processes alone: what libcni does around them (its cache) and what
		// entering the node's namespaces takes is the same for both peers.
		var took, cpu time.Duration
		for _, c := range p.timer.take() {
			took += c.wall
			cpu += c.user + c.sys
		}
		time.Sleep(max(a.pause, i.settle))
		if cycle > 0 { // the first one brings the binaries into memory
			a.run.Add(i.name, p.suite.Name, pods, v.wall, millis(took))
			a.run.Add(i.name, p.suite.Name, pods, v.cpu, millis(cpu))
		}
	}
	return ctx.Err()
}

func addGoals(i interfacePlugin, pods int) (goals []report.Goal) {
	for _, of := range []struct {
		what   string
		metric report.Metric
	}{{"ADD", report.Add}, {"CPU time of ADD", report.AddCPU}} {
		goals = append(goals, report.Goal{
			Text: fmt.Sprintf("%s, %d pods: %s <= 0.5x the reference's", i.name, pods, of.what),
			Key:  report.Key{Scenario: i.name, Peer: subject.Sluice, Pods: pods, Metric: of.metric.Name}, Base: subject.Reference, Max: 0.5,
		})
	}
	return goals
}

func (a *adds) write(w io.Writer, done []interfacePlugin) error {
	style := report.Style{Colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""}
	var sections []report.Section
	var goals []report.Goal
	for _, i := range done {
		for _, pods := range a.pods {
			sections = append(sections, report.Section{
				Scenario: i.name, Pods: pods, Metrics: report.Verbs,
				Title: fmt.Sprintf("%s + host-local, %d pods: median of %d", i.name, pods, a.cycles),
			})
			goals = append(goals, addGoals(i, pods)...)
		}
	}
	for _, s := range sections {
		if err := a.run.WriteTable(w, s, a.names(), subject.Reference, style); err != nil {
			return err
		}
	}
	if _, err := a.run.WriteGoals(w, goals, style); err != nil {
		return err
	}
	for _, i := range done {
		if err := a.writeMove(w, i); err != nil {
			return err
		}
	}
	return report.WriteJSON(a.out, a.run.Rows(sections, a.names(), subject.Reference))
}
