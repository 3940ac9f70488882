// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/kubetest"
)

var (
	volume     = flag.Int("volume", 200, "how many ADDs TestPrivilegedVolume does; the goal of ADR 40 is 10000")
	volumeTime = flag.Duration("volume-time", 30*time.Minute, "TestPrivilegedVolume fails if its ADDs take longer")
)

// volumeNode is a node of the volume test: a folder, and the pods that it has by the runtime's knowledge.
type volumeNode struct {
	caller
	dir, name string
	rnd       *rand.Rand
	mu        *sync.Mutex
	owner     map[netip.Addr]string
	live      map[string]netip.Addr
	link      *link
	t         *testing.T

	newer string // the programs that replace those of an older build after half of the rounds, or empty
	count volumeCount
}

// volumeCount is what came of the calls of a node.
type volumeCount struct {
	adds, failed, kills int
}

// start runs a verb in a process group of its own and kills it after a while if that is wanted, with all it started but
// upkeep, which has a session of its own.
func (n *volumeNode) start(verb, id string, kill time.Duration) (string, bool) {
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"sluice-ipam","data_dir":%q,%s}}`, n.dir, n.ipam)
	cmd := exec.Command(filepath.Join(n.bin, "sluice-ipam"))
	cmd.Env = append(os.Environ(), "NODENAME="+n.name, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS=/run/netns/none", "CNI_IFNAME=net1",
		"CNI_PATH="+n.bin, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME="+id)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = strings.NewReader(text), &out
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	if err := n.ns.Do(cmd.Start); err != nil {
		n.t.Error(err)
		return "", false
	}
	if kill > 0 {
		time.AfterFunc(kill, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	}
	err := cmd.Wait()
	return out.String(), err == nil
}

func (n *volumeNode) round(i int) {
	id := fmt.Sprintf("%s-%d", n.name, i)
	kill := time.Duration(0)
	if n.rnd.IntN(4) == 0 {
		kill = time.Duration(1+n.rnd.IntN(20_000)) * time.Microsecond
		n.count.kills++
	}
	n.count.adds++
	out, ok := n.run(id, "ADD", kill)
	if ok {
		var res struct {
			IPs []struct {
				Address netip.Prefix `json:"address"`
			} `json:"ips"`
		}
		if err := json.Unmarshal([]byte(out), &res); err != nil || len(res.IPs) != 1 {
			n.t.Errorf("%s: %q", id, out)
			return
		}
		a := res.IPs[0].Address.Addr()
		n.mu.Lock()
		if by, taken := n.owner[a]; taken {
			n.t.Errorf("%s has %s and %s", a, by, id)
		}
		n.owner[a] = id
		n.mu.Unlock()
		n.live[id] = a
	} else {
		n.count.failed++
		n.del(id) // as the runtime does after a failed ADD
	}
	if len(n.live) > 12 || n.rnd.IntN(3) == 0 {
		for old := range n.live {
			n.del(old)
			break
		}
	}
}

func (n *volumeNode) run(id, verb string, kill time.Duration) (string, bool) {
	for range 3 {
		out, ok := n.start(verb, id, kill)
		if ok || verb == "ADD" {
			return out, ok
		}
		kill = 0
	}
	n.t.Errorf("%s %s fails", verb, id)
	return "", false
}

// del frees an address for others before the plugin does.
func (n *volumeNode) del(id string) {
	n.mu.Lock()
	if a, ok := n.live[id]; ok {
		delete(n.owner, a)
	}
	n.mu.Unlock()
	delete(n.live, id)
	kill := time.Duration(0)
	if n.rnd.IntN(6) == 0 {
		kill = time.Duration(1+n.rnd.IntN(5_000)) * time.Microsecond
		n.count.kills++
	}
	n.run(id, "DEL", kill)
}

// Many ADDs and DELs of nodes that share a small pool give no address twice and leak none. Processes of the plugin and the store
// program are killed at random points, the API server goes away, and nodes are cut off. A writer like whereabouts takes part, a node
// of an older build, and one whose programs are replaced while its pods run.
func TestPrivilegedVolume(t *testing.T) {
	s, bin := kube(t), programs(t)
	former := formerPrograms(t, bin)
	began := time.Now()
	var mu sync.Mutex
	owner := map[netip.Addr]string{}
	var nodes []*volumeNode
	for i := range 4 {
		n := &volumeNode{dir: t.TempDir(), name: fmt.Sprintf("vol-%d", i), rnd: rand.New(rand.NewPCG(uint64(i), 3)), mu: &mu, owner: owner, live: map[string]netip.Addr{}, t: t}
		var config string
		n.link, config = newLink(t, s)
		n.caller = caller{s.NS, bin, fmt.Sprintf(`"range":"10.70.0.0/26","block_size":8,"kubernetes":{"kubeconfig":%q}`, config), n.name}
		if i >= 2 {
			n.bin = former
		}
		if i == 3 {
			n.newer = bin
		}
		nodes = append(nodes, n)
	}
	nodes[0].round(-1) // the pool is there
	stop := make(chan struct{})
	var outages sync.WaitGroup
	other, ended := context.WithCancel(t.Context())
	foreignADDs, outageCount, cuts := 0, 0, 0
	outages.Go(func() { foreignADDs = newForeign(t, s, "10.70.0.0-26", 62, &mu, owner).run(other) })
	outages.Go(func() { cuts = partition(stop, nodes) })
	outages.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(7 * time.Second):
				s.Stop()
				time.Sleep(time.Second)
				s.Start()
				outageCount++
			}
		}
	})
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			rounds := *volume / len(nodes)
			for i := range rounds {
				if time.Since(began) > *volumeTime {
					t.Errorf("%s: %d of %d ADDs after %v", n.name, i, rounds, *volumeTime)
					break
				}
				if i == rounds/2 && n.newer != "" {
					n.bin = n.newer
				}
				n.round(i)
			}
			for id := range n.live {
				n.del(id)
			}
		})
	}
	wg.Wait()
	close(stop)
	ended()
	outages.Wait()
	var sum volumeCount
	for _, n := range nodes {
		sum.adds, sum.failed, sum.kills = sum.adds+n.count.adds, sum.failed+n.count.failed, sum.kills+n.count.kills
		giveBack(t, s, n)
	}
	left := allocations(t, s, "10.70.0.0-26")
	if len(left) > 0 {
		t.Errorf("leaks: %v", left)
	}
	t.Logf("%d ADDs in %v, of which %d failed and had a DEL; %d processes killed; %d nodes cut off; %d times no API server; "+
		"%d ADDs of whereabouts' writer; builds: new, new, %s, %s then new; %d leaks",
		sum.adds, time.Since(began).Round(time.Second), sum.failed, sum.kills, cuts, outageCount, foreignADDs, formerCommit, formerCommit, len(left))
}

// partition cuts nodes off, one after the other. It returns how often.
func partition(stop <-chan struct{}, nodes []*volumeNode) (cuts int) {
	rnd := rand.New(rand.NewPCG(5, 5))
	for ; ; cuts++ {
		select {
		case <-stop:
			return cuts
		case <-time.After(time.Duration(1+rnd.IntN(4)) * time.Second):
		}
		n := nodes[rnd.IntN(len(nodes))]
		n.link.set(true, rnd.IntN(2) == 0)
		time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
		n.link.set(false, false)
	}
}

// giveBack runs the operator's command that returns all a node does not use.
func giveBack(t *testing.T, s *kubetest.Server, n *volumeNode) {
	t.Helper()
	cmd := exec.Command(filepath.Join(n.bin, "sluice-ipam-store"), "release", "-kubeconfig", s.Kubeconfig, "-data-dir", n.dir, "-unused", "-yes")
	cmd.Env = append(os.Environ(), "NODENAME="+n.name)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := s.NS.Do(cmd.Run); err != nil {
		t.Errorf("%s: %v: %s", n.name, err, out)
	}
}
