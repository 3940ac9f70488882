// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

const (
	manyNodes = 1000
	maxRSS    = 40 << 10 // kB
	maxIdle   = 0.002    // of a core: a look each minute at files, routes and hostPorts
	idle      = 60 * time.Second
)

// With 1,000 nodes, each as large as kubelet makes it, the agent stays below 40 MB, and below two thousandths of a core while nothing changes:
// heartbeats are Leases, which it does not follow. It also prints the cost of kubelet's status updates, one in five minutes from each node.
func TestPrivilegedAgentMemory(t *testing.T) {
	n := newNode(t)
	n.addNode(self, 1, "10.244.255.0/26", "fd24::/64")
	agent := n.start()
	n.awaitReady()
	bytes := n.addMany(manyNodes - 1)
	n.awaitReady()
	e2etest.Eventually(t, 4*patient, func() error {
		if got := strings.Count(n.routes(), "via"); got != 2*(manyNodes-1) {
			return fmt.Errorf("%d routes", got)
		}
		return nil
	})
	pid := agent.PID()
	if peak := memory(t, pid, "VmHWM"); peak > maxRSS { // the first start, which installs the plugins, and 1,000 nodes that join
		t.Errorf("after the nodes have joined: peak %d kB, want at most %d", peak, maxRSS)
	}
	t.Logf("%d nodes of %d bytes; RSS %d kB, %d kB of it the program's file, at most %d kB so far", manyNodes, bytes, memory(t, pid, "VmRSS"), memory(t, pid, "RssFile"), memory(t, pid, "VmHWM"))

	// A start with all nodes there is the largest list.
	agent.Signal(15)
	agent = n.start()
	n.awaitReady()
	pid = agent.PID()
	time.Sleep(10 * time.Second) // what the start left to do
	// Others on the machine make the same work take more CPU time, never less: the quietest of three minutes counts.
	share := 1.0
	for i := 0; i < 3 && share > maxIdle; i++ {
		before, start := cpu(t, pid), time.Now()
		time.Sleep(idle)
		used := cpu(t, pid) - before
		share = min(share, used.Seconds()/time.Since(start).Seconds())
		t.Logf("idle for %v: %v of CPU time, %.4f %% of a core", idle, used, 100*used.Seconds()/idle.Seconds())
	}
	rss, peak := memory(t, pid, "VmRSS"), memory(t, pid, "VmHWM")
	t.Logf("after a start: RSS %d kB, at most %d kB", rss, peak)
	if rss > maxRSS || peak > maxRSS {
		t.Errorf("RSS %d kB, peak %d kB, want at most %d", rss, peak, maxRSS)
	}
	if share > maxIdle {
		t.Errorf("%.4f %% of a core, want at most %.4f %%", 100*share, 100*maxIdle)
	}

	before := cpu(t, pid)
	updates := n.touch(manyNodes / 10)
	time.Sleep(2 * time.Second)
	after := cpu(t, pid)
	each := (after - before) / time.Duration(updates)
	t.Logf("a status update costs %v: %.4f %% of a core with one of each node in five minutes; RSS then %d kB, at most %d kB",
		each, 100*each.Seconds()*manyNodes/300, memory(t, pid, "VmRSS"), memory(t, pid, "VmHWM"))
	if peak := memory(t, pid, "VmHWM"); peak > maxRSS {
		t.Errorf("after the updates: peak %d kB", peak)
	}
}

// addMany makes that many Nodes, as large as kubelet makes them, and returns the size of one.
func (n *node) addMany(count int) int {
	n.T.Helper()
	ctx := context.Background()
	var wg sync.WaitGroup
	size := 0
	next := make(chan int)
	for range 8 {
		wg.Go(func() {
			for i := range next {
				made, err := n.client.CoreV1().Nodes().Create(ctx, bigNode(i), metav1.CreateOptions{})
				if err == nil {
					made.Status = bigNode(i).Status
					_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
				}
				if err != nil {
					n.T.Error(err)
				}
				if i == 1 {
					size = made.Size()
				}
			}
		})
	}
	for i := 1; i <= count; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	return size
}

// bigNode is a node with labels, conditions and 50 images.
func bigNode(i int) *corev1.Node {
	name := fmt.Sprintf("worker-%04d.example.org", i)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
		Spec:       corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.244.%d.%d/26", i/4, i%4*64), PodCIDRs: []string{fmt.Sprintf("10.244.%d.%d/26", i/4, i%4*64), fmt.Sprintf("fd24:0:0:%x::/64", i)}},
	}
	for l := range 20 {
		node.Labels[fmt.Sprintf("node.example.org/label-%d", l)] = fmt.Sprintf("value-%d-of-%d", l, i)
	}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", 2+i%250)}, {Type: corev1.NodeInternalIP, Address: fmt.Sprintf("2001:db8:1::%x:%x", i, 9)}, {Type: corev1.NodeHostName, Address: name},
	}
	for c := range 6 {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("Condition%d", c)), Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for im := range 50 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: int64(im) << 20, Names: []string{
			fmt.Sprintf("registry.example.org/some/path/image-%d@sha256:%064x", im, im), fmt.Sprintf("registry.example.org/some/path/image-%d:v1.%d.%d", im, im, i),
		}})
	}
	return node
}

// touch updates the status of each node of a part, as kubelet does every five minutes, and returns how many updates that were.
func (n *node) touch(count int) int {
	n.T.Helper()
	ctx := context.Background()
	for i := 1; i <= count; i++ {
		name := bigNode(i).Name
		node, err := n.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			for c := range node.Status.Conditions {
				node.Status.Conditions[c].LastHeartbeatTime = metav1.NewTime(time.Now().Add(time.Minute))
			}
			_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		}
		if err != nil {
			n.T.Fatal(err)
		}
	}
	return count
}

// memory returns a line of /proc/PID/status, in kB.
func memory(t *testing.T, pid int, key string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key+":" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return kb
		}
	}
	t.Fatalf("no %s of process %d", key, pid)
	return 0
}

// cpu returns the CPU time of a process, of all its threads, from the scheduler's own count in nanoseconds.
func cpu(t *testing.T, pid int) (spent time.Duration) {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		spent += time.Duration(ns)
	}
	return spent
}
