// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// cost is what the plugins of one verb ask the kernel for, by kind. The units are calls, or bytes where the name says so.
type cost map[string]int

// Names of costs beside the commands of bpf(2) and the walked maps.
const (
	costRequests  = "netlink requests"
	costAnswers   = "bytes of netlink answers"
	costDirectory = "bytes of directory entries"
	costRead      = "bytes read from files"
	costCalls     = "calls of plugins"
	// Go's runtime and the loader read the table of mounts up to the mount of the cgroups, made when the node started. One reading gives up
	// to a page of whole lines, so its bytes depend on what else is mounted.
	costMounts = "readings of mountinfo"
	walkPrefix = "walks of "
)

// tracer starts plugins under strace while it is on.
type tracer struct {
	invoke.Exec

	strace, dir string

	mu  sync.Mutex
	on  bool
	got cost
}

func (x *tracer) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	if !x.on {
		return x.Exec.ExecPlugin(ctx, path, stdin, env)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := forgetLook(); err != nil {
		return nil, err
	}
	file := filepath.Join(x.dir, "trace")
	cmd := exec.CommandContext(ctx, x.strace, "-f", "-qq", "-s", "256", "-e", "trace=openat,sendto,sendmsg,recvfrom,recvmsg,bpf,getdents64,read", "-e", "signal=none", "-o", file, path)
	var errOut bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stderr = env, bytes.NewReader(stdin), &errOut
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out, errOut.Bytes())
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	x.got[costCalls]++
	x.got.add(string(raw))
	return out, nil
}

// forgetLook makes the next plugin look at the node. How long a look holds is a matter of time, and a busy machine is slow: the cost of
// a verb would depend on it.
func forgetLook() error {
	looks, err := filepath.Glob("/run/sluice/datapath-*.ports") // in the mount namespace of the node, as the plugin
	if err == nil && len(looks) == 0 {
		err = errors.New("no plugin has looked at the node")
	}
	for _, look := range looks {
		err = errors.Join(err, os.Chtimes(look, time.Unix(0, 0), time.Unix(0, 0)))
	}
	return err
}

var (
	tracedCall = regexp.MustCompile(`^[0-9]+ +([a-z0-9_]+)\((.*)\) += (-?[0-9]+)`)
	// Another thread may come in between a call and its end. Each then has a line of its own.
	tracedBegin = regexp.MustCompile(`^([0-9]+) .* <unfinished \.\.\.>$`)
	tracedEnd   = regexp.MustCompile(`^([0-9]+) +<\.\.\. [a-z0-9_]+ resumed>(.*)$`)
	bpfCommand  = regexp.MustCompile(`^(BPF_[A-Z_]+), `)
	pinnedName  = regexp.MustCompile(`pathname="[^"]*/maps/([^"/]+)"`)
	mapFD       = regexp.MustCompile(`map_fd=([0-9]+)`)
)

// wholeCalls yields each call of a trace with its end, as one line.
func wholeCalls(trace string) iter.Seq[string] {
	return func(yield func(string) bool) {
		begun := make(map[string]string) // by thread
		for line := range strings.Lines(trace) {
			line = strings.TrimSpace(line)
			if m := tracedBegin.FindStringSubmatch(line); m != nil {
				begun[m[1]] = strings.TrimSuffix(line, " <unfinished ...>")
				continue
			}
			if m := tracedEnd.FindStringSubmatch(line); m != nil {
				line = begun[m[1]] + m[2]
			}
			if !yield(line) {
				return
			}
		}
	}
}

// add counts what one plugin process did.
func (c cost) add(trace string) {
	mapOf := make(map[string]string) // by descriptor
	mounts := make(map[string]bool)  // descriptors of mountinfo
	for line := range wholeCalls(trace) {
		m := tracedCall.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name, args, end := m[1], m[2], m[3]
		result, _ := strconv.Atoi(end)
		fd, _, _ := strings.Cut(args, ",")
		switch name {
		case "sendto", "sendmsg":
			c[costRequests]++
		case "recvfrom", "recvmsg":
			c[costAnswers] += max(result, 0)
		case "getdents64":
			c[costDirectory] += max(result, 0)
		case "openat":
			delete(mounts, end)
			if strings.Contains(args, `/mountinfo"`) {
				mounts[end] = true
			}
		case "read":
			if mounts[fd] {
				c[costMounts]++
				continue
			}
			c[costRead] += max(result, 0)
		case "bpf":
			if n := bpfCommand.FindStringSubmatch(args); n != nil {
				c[n[1]]++
				if n[1] == "BPF_MAP_LOOKUP_BATCH" || n[1] == "BPF_MAP_GET_NEXT_KEY" {
					fd := mapFD.FindStringSubmatch(args)
					c[walkPrefix+mapOf[fd[1]]]++
				}
			}
			if p := pinnedName.FindStringSubmatch(args); p != nil && result >= 0 {
				mapOf[end] = p[1]
			}
		}
	}
}

// mayWalk are the maps that a verb may read as a whole. They have what is the node's own, whatever the number of its pods: its addresses
// (one for the gateways of all pods of a subnet), its uplinks, the denylist, and the connections of its own processes to hostPorts.
var mayWalk = []string{"sl_node_addrs", "sl_uplinks", "sl_denylist", "sl_socklb_conn"}

// What a verb asks the kernel for, and how much the kernel answers, is the same on a full node as on an empty one.
func TestPrivilegedVerbCostIsFlat(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal(err)
	}
	few, many := 10, netlab.Fewer(200, 100)
	rules := e2etest.Attributes{"ingressPolicy": "isolated"}
	limits := e2etest.Attributes{"ingressRate": 1 << 30, "ingressBurst": 1 << 30, "egressRate": 1 << 30, "egressBurst": 1 << 30}
	for name, n := range map[string]e2etest.Network{
		"ptp":    {Main: "ptp", Plugins: []string{}},
		"bridge": {Plugins: []string{"portmap", "firewall", "bandwidth"}, Firewall: rules, Bandwidth: limits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newCostLab(t, n, strace)
			l.fill(few)
			at10 := l.measure()
			l.fill(many)
			at200 := l.measure()
			for verb, before := range at10 {
				after := at200[verb]
				t.Logf("%s: %v", verb, before)
				for _, c := range []cost{before, after} {
					for kind := range c {
						if m, ok := strings.CutPrefix(kind, walkPrefix); ok && !slices.Contains(mayWalk, m) {
							t.Errorf("%s walks the map %q: it may be as large as the node", verb, m)
						}
					}
				}
				if before[costCalls] == 0 || before[costRequests] == 0 || before["BPF_MAP_LOOKUP_ELEM"] == 0 {
					t.Errorf("%s was not traced: %v", verb, before)
				}
				for kind, n := range after {
					if n > before[kind]+slack(kind) {
						t.Errorf("%s: %d %s with %d pods, %d with %d: the cost grows", verb, before[kind], kind, few, n, many)
					}
				}
			}
		})
	}
}

// slack is how much more than before a cost may be: names of pods, ports and devices get longer by a digit.
func slack(kind string) int {
	switch kind {
	case costAnswers, costRead, costDirectory:
		return 1024
	}
	return 0
}

// costLab is a node whose pods come and go by one network.
type costLab struct {
	t    *testing.T
	w    *e2etest.World
	rt   *netlab.Runtime
	x    *tracer
	pods int

	measured int
}

func newCostLab(t *testing.T, n e2etest.Network, strace string) *costLab {
	t.Helper()
	w := e2etest.NewWorld(t)
	x := &tracer{Exec: netlab.NewExec(w.Stderr), strace: strace, dir: t.TempDir()}
	rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{e2etest.Programs.Dir}, Conflist: n.Conflist(t), Exec: x})
	if err != nil {
		t.Fatal(err)
	}
	return &costLab{t: t, w: w, rt: rt, x: x}
}

// attachment makes the namespace of pod i and describes it. Each pod has a hostPort.
func (l *costLab) attachment(i int) (netlab.Attachment, error) {
	name := fmt.Sprintf("pod%04d", i)
	p, err := l.w.Node.NewPod(name)
	if err != nil {
		return netlab.Attachment{}, err
	}
	l.t.Cleanup(func() { _ = p.Close() })
	return netlab.Attachment{ContainerID: name, NetNS: p.Path, Capabilities: map[string]any{
		"portMappings": []map[string]any{{"hostPort": 20000 + i, "containerPort": 80, "protocol": "tcp"}},
	}}, nil
}

func (l *costLab) verb(f func(context.Context, netlab.Attachment) error, a netlab.Attachment) error {
	ctx, cancel := context.WithTimeout(context.Background(), e2etest.VerbTimeout)
	defer cancel()
	return f(ctx, a)
}

func (l *costLab) add(ctx context.Context, a netlab.Attachment) error {
	_, err := l.rt.Add(ctx, a)
	return err
}

// fill attaches pods until there are so many.
func (l *costLab) fill(to int) {
	l.t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, to)
	next := make(chan int)
	for range 4 {
		wg.Go(func() {
			for i := range next {
				a, err := l.attachment(i)
				if err == nil {
					err = l.verb(l.add, a)
				}
				if err != nil {
					errs <- err
				}
			}
		})
	}
	for ; l.pods < to; l.pods++ {
		next <- l.pods
	}
	close(next)
	wg.Wait()
	select {
	case err := <-errs:
		l.t.Fatal(err)
	default:
	}
}

// measure returns the least of three costs of each verb: the kernel repeats a dump during which a table changed, as by duplicate address
// detection, and a free number is looked for at random.
func (l *costLab) measure() map[string]cost {
	l.t.Helper()
	least := make(map[string]cost)
	for range 3 {
		l.measured++
		a, err := l.attachment(9000 + l.measured)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, v := range []struct {
			name string
			do   func(context.Context, netlab.Attachment) error
		}{{"ADD", l.add}, {"CHECK", l.rt.Check}, {"DEL", l.rt.Del}} {
			l.x.on, l.x.got = true, make(cost)
			err := l.verb(v.do, a)
			l.x.on = false
			if err != nil {
				l.t.Fatalf("%s: %v", v.name, err)
			}
			if least[v.name] == nil {
				least[v.name] = l.x.got
			}
			for kind, n := range least[v.name] {
				least[v.name][kind] = min(n, l.x.got[kind])
			}
		}
	}
	return least
}
