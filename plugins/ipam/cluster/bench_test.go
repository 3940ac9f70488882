// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/nodeid"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// fleet is simulated nodes: each is a folder with a Node object, and calls the real plugin as a process.
type fleet struct {
	b     *testing.B
	s     *kubetest.Server
	nodes []fleetNode
}

type fleetNode struct {
	caller
	dir string
}

func newFleet(b *testing.B, s *kubetest.Server, bin, ipam string, nodes int) *fleet {
	b.Helper()
	f := &fleet{b: b, s: s}
	for i := range nodes {
		name := fmt.Sprintf("bench-%d", i)
		register(b, s, name, nodeid.BootID())
		f.nodes = append(f.nodes, fleetNode{caller{s.NS, bin, fmt.Sprintf(`%s,"kubernetes":{"kubeconfig":%q}`, ipam, s.Kubeconfig), name}, b.TempDir()})
	}
	return f
}

// fill gives pods addresses, each node one after the other, and tries again as the kubelet does. It returns the time, the
// duration of each ADD, and the requests that the API server had.
func (f *fleet) fill(pods int) (total time.Duration, each []time.Duration, requests float64) {
	before := f.requests()
	begin := time.Now()
	var mu sync.Mutex
	seen := map[netip.Addr]bool{}
	var wg sync.WaitGroup
	for n, node := range f.nodes {
		wg.Go(func() {
			for i := n; i < pods; i += len(f.nodes) {
				start := time.Now()
				a, err := node.add(node.dir, fmt.Sprintf("p%d", i))
				for try := 0; err != nil && try < 20; try++ {
					if code := cnierr.From(err).Code; code != cnierr.CodeExhausted && code != cnierr.CodeTryAgain {
						break
					}
					a, err = node.add(node.dir, fmt.Sprintf("p%d", i))
				}
				took := time.Since(start)
				mu.Lock()
				if err != nil || seen[a] {
					f.b.Errorf("pod %d: %s %v", i, a, err)
				}
				seen[a] = true
				each = append(each, took)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return time.Since(begin), each, f.requests() - before
}

// addDel adds and deletes pods by calls of a plugin, and returns the durations of the ADDs.
func addDel(b *testing.B, name string, n int, call func(verb, id string) error) (each []time.Duration) {
	b.Helper()
	for i := range n {
		start := time.Now()
		id := fmt.Sprintf("%s%d", name, i)
		if err := call("ADD", id); err != nil {
			b.Fatal(err)
		}
		each = append(each, time.Since(start))
		if err := call("DEL", id); err != nil {
			b.Fatal(err)
		}
	}
	return each
}

// call calls the plugin of the first node.
func (f *fleet) call(verb, id string) error {
	_, err := f.nodes[0].run(verb, f.nodes[0].dir, id)
	return err
}

// hostLocal calls host-local of the same build, whose pods are of one node.
func hostLocal(b *testing.B, ns *netlab.NS) func(verb, id string) error {
	b.Helper()
	c := caller{ns: ns, bin: buildPrograms(b, source, "./cmd/sluice-cni")}
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.66.0.0/16"}]]}}`, b.TempDir())
	return func(verb, id string) error {
		cmd := exec.Command(filepath.Join(c.bin, "sluice-cni"))
		cmd.Args = []string{"host-local"}
		_, err := c.exec(cmd, verb, id, conf)
		return err
	}
}

// requests is how many requests about pools and nodes the API server has answered.
func (f *fleet) requests() float64 {
	f.b.Helper()
	c, err := kubernetes.NewForConfig(f.s.Config())
	if err != nil {
		f.b.Fatal(err)
	}
	text, err := c.RESTClient().Get().AbsPath("/metrics").Do(context.Background()).Raw()
	if err != nil {
		f.b.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, "whereabouts.cni.cncf.io") && !strings.Contains(line, `resource="nodes"`) {
			continue
		}
		if i := strings.LastIndexByte(line, ' '); i > 0 {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
			sum += v
		}
	}
	return sum
}

func percentile(d []time.Duration, p int) time.Duration {
	slices.Sort(d)
	return d[min(len(d)-1, len(d)*p/100)]
}

// BenchmarkIPAM measures what ADR 40 has goals for, and prints the table. "make bench-ipam" runs it once.
func BenchmarkIPAM(b *testing.B) {
	s, bin := kube(b), programs(b)
	type row struct{ what, goal, measured string }
	var rows []row
	for _, tc := range []struct {
		what, goal, ipam string
		pods             int
	}{
		{"1,000 pods over 10 nodes, a large pool", "60 s", `"range":"10.60.0.0/16"`, 1000},
		{"1,000 pods over 10 nodes, 1,000 addresses", "60 s", `"range":"10.61.0.0/20","range_end":"10.61.3.232"`, 1000},
		{"2,048 addresses of a fresh pool, 10 nodes", "20 s", `"range":"10.62.0.0/20","range_end":"10.62.8.0"`, 2048},
	} {
		f := newFleet(b, s, bin, tc.ipam, 10)
		total, each, requests := f.fill(tc.pods)
		rows = append(rows,
			row{tc.what, tc.goal, fmt.Sprintf("%.1f s", total.Seconds())},
			row{"- ADD p50, p99", "", fmt.Sprintf("%.1f ms, %.1f ms", ms(percentile(each, 50)), ms(percentile(each, 99)))},
			row{"- requests per ADD, at the API server", "0.2", fmt.Sprintf("%.2f", requests/float64(tc.pods))})
	}
	few := newFleet(b, s, bin, `"range":"10.64.0.0/16","block_size":128`, 1)
	few.fill(100) // a node with as many pods as the kubelet has by default
	many := newFleet(b, s, bin, `"range":"10.65.0.0/16","block_size":128`, 1)
	many.fill(700)
	local := hostLocal(b, s.NS)
	for i := range 100 {
		if err := local("ADD", fmt.Sprintf("p%d", i)); err != nil {
			b.Fatal(err)
		}
	}
	measure := func(what, name string, call func(verb, id string) error) {
		each := addDel(b, name, 300, call)
		rows = append(rows, row{what, "10 ms", fmt.Sprintf("%.1f ms, %.1f ms", ms(percentile(each, 50)), ms(percentile(each, 99)))})
	}
	for _, state := range []string{"up", "down"} {
		if state == "down" {
			s.Stop()
		}
		measure("ADD from a block, 100 pods, API server "+state+": p50, p99", state, few.call)
		measure("ADD from a block, 700 pods, API server "+state+": p50, p99", state, many.call)
		measure("ADD of host-local, 100 pods, API server "+state+": p50, p99", state, local)
	}
	s.Start()
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("\nload of the machine at the end: %s\n| | goal | measured |\n|---|---|---|\n", strings.TrimSpace(string(load)))
	for _, r := range rows {
		fmt.Printf("| %s | %s | %s |\n", r.what, r.goal, r.measured)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
