// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// process is one run of "bench process": what an ADD consists of, each step by itself. A step is done by as little code as there is for
// it, so its figure is the floor of any plugin that does it this way.
type process struct {
	common
	rounds int

	lab  *netlab.Lab
	pod  *netlab.Pod
	host *rtnl.Handle // on the node
	in   *rtnl.Handle // in the pod
	netn *netns.NS    // the pod's
	dp   *loader.Datapath
	ep   loader.Endpoint
	recs *attachments.Dir
	dir  string
}

// step is a part of an ADD. before and after are not timed.
type step struct {
	name   string
	before func() error
	do     func() error
	after  func() error
	here   bool // it runs on the node, in this process
}

// costs are what a step took, one entry for each round.
type costs struct {
	wall, user, sys []time.Duration
	faults          []int64
}

const (
	hostEnd = "veth0"
	podEnd  = "eth0"
)

var (
	podAddr = netip.MustParsePrefix("10.88.0.2/24")
	gateway = netip.MustParseAddr("10.88.0.1")
)

func runProcess(ctx context.Context, args []string) (err error) {
	p := &process{common: common{only: []string{subject.Sluice}}}
	f := flag.NewFlagSet("bench process", flag.ContinueOnError)
	p.register(f, subject.Sluice)
	f.IntVar(&p.rounds, "rounds", 200, "how often each step is done")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if p.rounds < 1 {
		return errors.New("-rounds: must be at least 1")
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.prepare(ctx); err != nil {
		return err
	}
	p.describe(os.Stdout)
	if p.dir, err = p.tempDir(); err != nil {
		return err
	}
	if p.lab, err = netlab.New(netlab.Options{ForwardIPv4: true, ForwardIPv6: true}); err != nil {
		return err
	}
	p.cleanup = append(p.cleanup, p.lab.Close)
	if p.pod, err = p.lab.Node.NewPod("pod"); err != nil {
		return err
	}
	steps := p.starts(ctx)
	if err := p.lab.Node.Do(func() error { return p.open(ctx) }); err != nil {
		return err
	}
	return p.measure(append(steps, p.node(ctx)...), os.Stdout)
}

// starts are processes without work.
func (p *process) starts(ctx context.Context) []step {
	empty := filepath.Join(p.dir, "empty")
	run := func(name string, stdin string, env ...string) func() error {
		return func() error {
			cmd := exec.CommandContext(ctx, name)
			cmd.Env, cmd.Stdin = env, strings.NewReader(stdin)
			if out, err := cmd.Output(); err != nil {
				return fmt.Errorf("%s: %w: %s", name, err, out)
			}
			return nil
		}
	}
	steps := []step{{name: "a C program that does nothing (/bin/true)", do: run("/bin/true", "")}}
	if _, err := exec.LookPath("go"); err != nil {
		fmt.Println("without a Go program that does nothing:", err)
	} else {
		steps = append(steps, step{name: "a Go program that does nothing", before: func() error { return buildEmpty(ctx, empty) }, do: run(empty, "")})
	}
	return append(steps,
		step{name: "the plugin bridge, asked for its VERSION", do: run(filepath.Join(p.suites[0].BinDir, "bridge"), `{"cniVersion":"1.0.0"}`, "CNI_COMMAND=VERSION")})
}

// buildEmpty makes the Go program once.
func buildEmpty(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	src := path + ".go"
	if err := os.WriteFile(src, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, src)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out.Bytes())
	}
	return nil
}

// open makes what the steps on the node need. It runs there.
func (p *process) open(ctx context.Context) (err error) {
	if p.netn, err = netns.Open(p.pod.Path); err != nil {
		return err
	}
	if p.host, err = rtnl.New(); err != nil {
		return err
	}
	if p.in, err = rtnl.NewIn(p.netn); err != nil {
		return err
	}
	p.recs = attachments.Open(attachments.DefaultDir) // on the node's own /run
	p.dp, err = loader.Open(ctx, loader.Options{Loader: ebpfload.InProcess{}})
	p.cleanup = append(p.cleanup, func() error {
		p.host.Close()
		p.in.Close()
		p.netn.Close()
		return p.dp.Close()
	})
	return err
}

// node are the steps on the node, in the order of an ADD.
func (p *process) node(ctx context.Context) []step {
	ref := attachments.ID{Network: "bench", ContainerID: "c0", IfName: podEnd}
	file := filepath.Join(p.dir, podAddr.Addr().String())
	remove := func() error {
		h, err := p.host.LinkByName(hostEnd)
		if err != nil {
			return err
		}
		return p.host.DelLink(h.Index)
	}
	steps := []step{
		{name: "the attachment record: two files written and renamed", do: func() error {
			return errors.Join(p.recs.Begin(ref, p.pod.Path, "bridge", nil), p.recs.Complete(ref, "bridge", nil))
		}, after: func() error { return p.recs.Remove(ref, "bridge") }},
		{name: "the address of host-local: one file", do: func() error {
			f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = f.WriteString("c0\r\neth0")
			return errors.Join(err, f.Close())
		}, after: func() error { return os.Remove(file) }},
		{name: "the veth pair: one netlink message", do: p.addVeth, after: remove},
		{name: "its end, with DEL: two netlink messages", before: func() error { return errors.Join(p.addVeth(), p.configure()) }, do: remove},
		{name: "address, routes and link state: four netlink messages", before: p.addVeth, do: p.configure, after: remove},
		{name: "programs attached, map entries written", before: func() (err error) {
			if err := errors.Join(p.addVeth(), p.configure()); err != nil {
				return err
			}
			if p.ep, err = loader.Resolve(ctx, p.pod.Path, podEnd); err != nil {
				return err
			}
			p.ep.Ref = ref
			return p.recs.Begin(ref, p.pod.Path, "bridge", nil)
		}, do: func() error { return p.dp.Enable(ctx, p.ep, loader.FeatureMasquerade) }, after: func() error {
			return errors.Join(p.dp.Disable(ctx, ref.Owner(), loader.FeatureMasquerade, loader.HeldBy(p.ep.Addrs)), p.recs.Remove(ref, "bridge"), remove())
		}},
	}
	for i := range steps {
		steps[i].here = true
	}
	return steps
}

func (p *process) addVeth() error {
	return p.host.AddVeth(rtnl.VethSpec{HostName: hostEnd, HostUp: true, PeerName: podEnd, PeerNS: p.netn.Fd(), MTU: 1500})
}

// configure gives the pod's end its address and routes, as ptp does.
func (p *process) configure() error {
	l, err := p.in.LinkByName(podEnd)
	if err != nil {
		return err
	}
	return errors.Join(
		p.in.SetUp(l.Index),
		p.in.AddAddr(rtnl.Addr{LinkIndex: l.Index, Prefix: podAddr}),
		p.in.AddRoute(rtnl.Route{LinkIndex: l.Index, Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: gateway}))
}

// measure does each step in turn, once a round: what else the machine does meets all of them.
func (p *process) measure(steps []step, w io.Writer) error {
	all := make([]costs, len(steps))
	for round := range p.rounds + 1 {
		for i, s := range steps {
			var one call
			var faults int64
			do := func() (err error) { one, faults, err = s.once(); return err }
			if s.here {
				in := do
				do = func() error { return p.lab.Node.Do(in) }
			}
			if err := do(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if round > 0 { // the first one warms up
				all[i].add(one, faults)
			}
		}
	}
	fmt.Fprintf(w, "\nSteps of an ADD, %d rounds, us: median by the clock, mean of CPU time (of the step's process or thread), page faults\n", p.rounds)
	fmt.Fprintf(w, "  %-58s %8s %8s %8s %8s\n", "", "wall", "user", "system", "faults")
	for i, s := range steps {
		c := &all[i]
		fmt.Fprintf(w, "  %-58s %8d %8d %8d %8d\n", s.name,
			middle(c.wall).Microseconds(), mean(c.user).Microseconds(), mean(c.sys).Microseconds(), middle(c.faults))
	}
	return nil
}

// mean is for CPU time, which many kernels count in ticks that are longer than a step.
func mean(d []time.Duration) time.Duration {
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	return sum / time.Duration(len(d))
}

func (c *costs) add(one call, faults int64) {
	c.wall, c.user, c.sys = append(c.wall, one.wall), append(c.user, one.user), append(c.sys, one.sys)
	c.faults = append(c.faults, faults)
}

// once does a step and says what it took. Of a process it is the cost of that process, of the others that of this thread.
func (s *step) once() (c call, faults int64, err error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return c, 0, err
		}
	}
	who := unix.RUSAGE_THREAD
	if !s.here {
		who = unix.RUSAGE_CHILDREN
	}
	var was, is syscall.Rusage
	if err := syscall.Getrusage(who, &was); err != nil {
		return c, 0, err
	}
	start := time.Now()
	err = s.do()
	c.wall = time.Since(start)
	if err := errors.Join(err, syscall.Getrusage(who, &is)); err != nil {
		return c, 0, err
	}
	c.user, c.sys = time.Duration(is.Utime.Nano()-was.Utime.Nano()), time.Duration(is.Stime.Nano()-was.Stime.Nano())
	if s.after != nil {
		err = s.after()
	}
	return c, is.Minflt + is.Majflt - was.Minflt - was.Majflt, err
}
