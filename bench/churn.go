// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The metrics of pods that come and go: wall time from the first start to the last end.
var (
	churnAdd = report.Metric{Name: "churn_add", Unit: "s", Title: "all ADDs, s", Digits: 2, Less: true}
	churnDel = report.Metric{Name: "churn_del", Unit: "s", Title: "all DELs, s", Digits: 2, Less: true}
	churnAll = report.Metric{Name: "churn_all", Unit: "s", Title: "both, s", Digits: 2, Less: true}
)

const (
	mixed  = "mixed plugins at once"
	chain  = "bridge + host-local + portmap at once"
	inTurn = "bridge + host-local + portmap one after the other"
)

// churn is one run of "bench churn".
type churn struct {
	common
	pods, rounds, against int
	out                   string
	run                   report.Run
}

func runChurn(ctx context.Context, args []string) (err error) {
	p := &churn{common: common{only: []string{subject.Reference, subject.Sluice}}}
	f := flag.NewFlagSet("bench churn", flag.ContinueOnError)
	p.register(f, "reference,sluice")
	f.IntVar(&p.pods, "pods", 200, "pods that come and go at once")
	f.IntVar(&p.rounds, "rounds", 10, "rounds of mixed plugins")
	f.IntVar(&p.against, "against", 3, "rounds against the reference")
	f.StringVar(&p.out, "out", filepath.Join("bench", "out", "churn.json"), "JSON report")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	p.plugins = append(slices.Clone(subject.Plugins), "ptp", "macvlan", "ipvlan", "vlan")
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.prepare(ctx); err != nil {
		return err
	}
	p.describe(os.Stdout)
	for _, s := range p.suites {
		if s.Name == subject.Sluice && p.rounds > 0 {
			if err := p.mixed(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", mixed, err)
			}
		}
	}
	if err := p.compare(ctx); err != nil {
		return fmt.Errorf("%s: %w", chain, err)
	}
	return p.write()
}

// crowd is a node whose pods come and go together. nets are used in turn.
type crowd struct {
	suite  subject.Suite
	lab    *netlab.Lab
	nets   []*netlab.Runtime
	pods   []*netlab.Pod
	serial int
}

// newCrowd makes a node, the pods' namespaces and a runtime for each conflist,
// then attaches and detaches one pod of each, so that what stays on the node by
// design is there.
func newCrowd(ctx context.Context, s subject.Suite, pods int, before []string, conflists []string) (_ *crowd, err error) {
	c := &crowd{suite: s}
	if c.lab, err = netlab.New(netlab.Options{ForwardIPv4: true, ForwardIPv6: true}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.lab.Close())
		}
	}()
	for _, line := range before {
		if err := c.lab.Node.Do(func() error { _, err := netlab.Run("ip", strings.Fields(line)...); return err }); err != nil {
			return nil, err
		}
	}
	for _, list := range conflists {
		rt, err := c.lab.Node.CNI(netlab.CNIOptions{Path: []string{s.BinDir}, Conflist: []byte(list)})
		if err != nil {
			return nil, err
		}
		c.nets = append(c.nets, rt)
	}
	for i := range max(pods, len(c.nets)) {
		pod, err := c.lab.Node.NewPod(fmt.Sprintf("pod%d", i))
		if err != nil {
			return nil, err
		}
		c.pods = append(c.pods, pod)
	}
	_, _, err = c.round(ctx, len(c.nets), atOnce)
	return c, err
}

// round attaches n pods in a way, such as at once, and detaches them in the same way. An address given
// twice is an error.
func (c *crowd) round(ctx context.Context, n int, way way) (add, del time.Duration, err error) {
	c.serial++
	at := func(i int) (*netlab.Runtime, netlab.Attachment) {
		a := netlab.Attachment{ContainerID: fmt.Sprintf("c%d-%d", c.serial, i), NetNS: c.pods[i].Path}
		a.Capabilities = map[string]any{"portMappings": []map[string]any{
			{"hostPort": 20000 + i, "containerPort": 80, "protocol": "tcp"},
		}}
		return c.nets[i%len(c.nets)], a
	}
	var mu sync.Mutex
	seen := map[string]int{}
	add, err = way(n, func(i int) error {
		rt, a := at(i)
		res, err := rt.Add(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: ADD of pod %d: %w", c.suite.Name, i, err)
		}
		r, err := types100.GetResult(res)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, ip := range r.IPs {
			key := rt.List.Name + " " + ip.Address.IP.String()
			if other, taken := seen[key]; taken {
				return fmt.Errorf("%s: pods %d and %d both got %s", c.suite.Name, other, i, key)
			}
			seen[key] = i
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	del, err = way(n, func(i int) error {
		rt, a := at(i)
		if err := rt.Del(ctx, a); err != nil {
			return fmt.Errorf("%s: DEL of pod %d: %w", c.suite.Name, i, err)
		}
		return nil
	})
	return add, del, errors.Join(err, ctx.Err())
}

// way runs f for each of n pods and says how long that took.
type way func(n int, f func(i int) error) (time.Duration, error)

func oneByOne(n int, f func(i int) error) (time.Duration, error) {
	start := time.Now()
	for i := range n {
		if err := f(i); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func atOnce(n int, f func(i int) error) (time.Duration, error) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return time.Since(start), errors.Join(errs...)
}

// snapshot is what the node and its pods hold, with the entries of Sluice's maps.
// Link-local addresses come and go in the kernel's own time.
func (c *crowd) snapshot(tool string) (netlab.Snapshot, error) {
	var s netlab.Snapshot
	for _, args := range [][]string{{"resync"}, {"hostports", "-o", "json"}, {"endpoints", "-o", "json"}} {
		err := c.lab.Node.Do(func() error {
			out, err := netlab.Run(tool, args...)
			s = append(s, "sluice "+strings.Join(args, " ")+": "+out)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	s[0] = "" // what sync says depends on what it found to do
	node, err := c.lab.Node.Snapshot()
	if err != nil {
		return nil, err
	}
	s = append(s, slices.DeleteFunc(node, func(line string) bool {
		return strings.Contains(line, "fe80:") && (strings.HasPrefix(line, "addr ") || strings.HasPrefix(line, "route "))
	})...)
	for i, pod := range c.pods {
		err := pod.Do(func() error {
			out, err := netlab.Run("ip", "-br", "link", "show")
			s = append(s, fmt.Sprintf("pod%d %s", i, out))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// mixedNets returns the names of the plugins that this kernel can run, what ip(8)
// has to make for them, and the conflists that the pods use in turn. With vlan
// there is one for each of its pods: an interface has one device for each VLAN.
func (p *churn) mixedNets() (names, before, conflists []string, err error) {
	h, err := rtnl.New()
	if err != nil {
		return nil, nil, nil, err
	}
	defer h.Close()
	const routed = `,{"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall"}`
	conflists = append(conflists,
		mixedList("bridge", `"bridge":"cni0","isGateway":true,"ipMasq":true,`, routed, 1), mixedList("ptp", `"ipMasq":true,`, routed, 2))
	names = []string{"bridge", "ptp"}
	for i, kind := range []string{"macvlan", "ipvlan"} {
		if h.Supports(kind) == nil {
			master := fmt.Sprintf("m%d", i)
			before = append(before, "link add "+master+" up type veth peer name w"+master, "link set w"+master+" up")
			conflists = append(conflists, mixedList(kind, `"master":"`+master+`",`, "", 3+i))
			names = append(names, kind)
		}
	}
	if h.Supports("vlan") != nil {
		return names, before, conflists, nil
	}
	before = append(before, "link add mv up type veth peer name wmv", "link set wmv up")
	return append(names, "vlan"), before, withVLANs(conflists, p.pods), nil
}

// mixedList is a conflist of one plugin with ranges of both families, and what comes after it in the chain.
func mixedList(name, keys, more string, net int) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"%s%d","plugins":[{"type":"%s",%s"ipam":{"type":"host-local","ranges":`+
		`[[{"subnet":"10.%d.0.0/16"}],[{"subnet":"fd00:10:%d::/64"}]]}}%s]}`, name, net, name, keys, net, net, more)
}

// withVLANs repeats the conflists for so many pods, each time with one of a VLAN of its own after them.
func withVLANs(conflists []string, pods int) []string {
	var all []string
	for vlan := 0; vlan == 0 || len(all) < pods; vlan++ {
		all = append(all, conflists...)
		all = append(all, mixedList("vlan", fmt.Sprintf(`"master":"mv","vlanId":%d,`, 2+vlan), "", 20+vlan))
	}
	return all
}

// mixed lets pods of all plugins come and go, round after round, and compares the
// node with what it was.
func (p *churn) mixed(ctx context.Context, s subject.Suite) (err error) {
	names, before, conflists, err := p.mixedNets()
	if err != nil {
		return err
	}
	c, err := newCrowd(ctx, s, p.pods, before, conflists)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.lab.Close()) }()
	tool, err := p.operatorTool()
	if err != nil {
		return err
	}
	was, err := c.snapshot(tool)
	if err != nil {
		return err
	}
	fmt.Printf("%d pods of %s, addresses of both families\n", p.pods, strings.Join(names, ", "))
	for round := range p.rounds {
		add, del, err := c.round(ctx, p.pods, atOnce)
		if err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		is, err := c.snapshot(tool)
		if err != nil {
			return err
		}
		if d := netlab.Diff(was, is); d != "" {
			return fmt.Errorf("round %d: the node differs (- gone, + left behind):\n%s", round+1, d)
		}
		fmt.Printf("round %d: ADD %.2f s, DEL %.2f s; no error, no address twice, nothing left\n", round+1, add.Seconds(), del.Seconds())
		p.note(mixed, s.Name, add, del)
	}
	return nil
}

func (p *churn) note(scenario, name string, add, del time.Duration) {
	p.run.Add(scenario, name, p.pods, churnAdd, add.Seconds())
	p.run.Add(scenario, name, p.pods, churnDel, del.Seconds())
	p.run.Add(scenario, name, p.pods, churnAll, (add + del).Seconds())
}

// compare takes the suites in turn, each on a node of its own.
func (p *churn) compare(ctx context.Context) (err error) {
	subnet := netip.MustParsePrefix("10.88.0.0/16")
	list := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"churn","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":%t,`+
		`"ipam":{"type":"host-local","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"0.0.0.0/0"}]}},`+
		`{"type":"portmap","capabilities":{"portMappings":true}}]}`, p.masquerade, subnet)
	var crowds []*crowd
	defer func() {
		for _, c := range crowds {
			err = errors.Join(err, c.lab.Close())
		}
	}()
	for _, s := range p.suites {
		c, err := newCrowd(ctx, s, p.pods, nil, []string{list})
		if err != nil {
			return err
		}
		crowds = append(crowds, c)
	}
	for round := range p.against {
		for _, c := range crowds {
			for _, how := range []struct {
				name string
				way  way
			}{{chain, atOnce}, {inTurn, oneByOne}} {
				add, del, err := c.round(ctx, p.pods, how.way)
				if err != nil {
					return fmt.Errorf("round %d, %s: %w", round+1, how.name, err)
				}
				fmt.Printf("round %d: %s, %s: ADD %.2f s, DEL %.2f s\n", round+1, c.suite.Name, how.name, add.Seconds(), del.Seconds())
				p.note(how.name, c.suite.Name, add, del)
			}
		}
		slices.Reverse(crowds)
	}
	return nil
}

func (p *churn) write() error {
	style := report.Style{Colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""}
	metrics := []report.Metric{churnAdd, churnDel, churnAll}
	sections := []report.Section{
		{Scenario: mixed, Pods: p.pods, Metrics: metrics, Title: fmt.Sprintf("%d pods of %s", p.pods, mixed)},
		{Scenario: chain, Pods: p.pods, Metrics: metrics, Title: fmt.Sprintf("%d pods of %s", p.pods, chain)},
		{Scenario: inTurn, Pods: p.pods, Metrics: metrics, Title: fmt.Sprintf("%d pods of %s", p.pods, inTurn)},
	}
	if p.rounds == 0 {
		sections = sections[1:]
	}
	for _, s := range sections {
		if err := p.run.WriteTable(os.Stdout, s, p.names(), subject.Sluice, style); err != nil {
			return err
		}
	}
	goal := report.Goal{
		Text: "the reference takes >= 3x as long", Min: 3, Base: subject.Sluice,
		Key: report.Key{Scenario: chain, Peer: subject.Reference, Pods: p.pods, Metric: churnAll.Name},
	}
	if _, err := p.run.WriteGoals(os.Stdout, []report.Goal{goal}, style); err != nil {
		return err
	}
	return report.WriteJSON(p.out, p.run.Rows(sections, p.names(), subject.Sluice))
}
