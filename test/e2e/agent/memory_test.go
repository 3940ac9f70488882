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
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// With 10,000 pods and 1,000 NetworkPolicies the agent stays below 60 MB. Twenty changes of labels a second should cost a hundredth of a core,
// a third of it for TLS and HTTP; the bound leaves room for a machine that does other things.
func TestPrivilegedAgentMemoryOfPolicies(t *testing.T) {
	const (
		pods, policies, namespaces = 10000, 1000, 100
		maxRSS                     = 60 << 10 // kB
		maxShare                   = 0.02
		updates                    = 20 // a second
	)
	n := newNode(t)
	n.configure("networkPolicy: {enabled: true}")
	n.addNode(self, 1, "10.244.255.0/26", "fd24::/64")
	ctx := context.Background()
	inNamespace := func(i int) string { return fmt.Sprint("ns-", i%namespaces) }
	for i := range namespaces {
		n.create(func() error {
			_, err := n.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: inNamespace(i)}}, metav1.CreateOptions{})
			return err
		})
	}
	n.many(policies, func(i int) error {
		_, err := n.client.NetworkingV1().NetworkPolicies(inNamespace(i)).Create(ctx, bigPolicy(i), metav1.CreateOptions{})
		return err
	})
	n.many(pods, func(i int) error {
		made, err := n.client.CoreV1().Pods(inNamespace(i)).Create(ctx, bigPod(i), metav1.CreateOptions{})
		if err == nil {
			made.Status = bigPod(i).Status
			_, err = n.client.CoreV1().Pods(inNamespace(i)).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
		return err
	})
	agent := n.start()
	e2etest.Eventually(t, 4*patient, func() error {
		_, body, err := n.ask("/metrics")
		if want := fmt.Sprintf("\nsluice_agent_networkpolicy_pods %d\n", pods); err == nil && !strings.Contains(body, want) {
			err = fmt.Errorf("no %q", want)
		}
		return err
	})
	pid := agent.PID()
	time.Sleep(10 * time.Second)
	t.Logf("after the lists: RSS %d kB, %d kB of it the program's file, at most %d kB so far", memory(t, pid, "VmRSS"), memory(t, pid, "RssFile"), memory(t, pid, "VmHWM"))
	share := 1.0
	for round := 0; round < 3 && share > maxShare; round++ { // others on the machine make it more, never less
		before, start := cpu(t, pid), time.Now()
		tick := time.NewTicker(time.Second / updates)
		for i := range 20 * updates {
			<-tick.C
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"round":"%d"},"labels":{"side":"%d"}}}`, round, (i+round)%2)
			if _, err := n.client.CoreV1().Pods(inNamespace(i)).Patch(ctx, bigPod(i).Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		tick.Stop()
		took := time.Since(start)
		used := cpu(t, pid) - before
		share = min(share, used.Seconds()/20) // as if they had come at that rate
		t.Logf("%d updates in %v: %v of CPU time", 20*updates, took, used)
	}
	rss, peak := memory(t, pid, "VmRSS"), memory(t, pid, "VmHWM")
	t.Logf("RSS %d kB, at most %d kB; %.2f %% of a core", rss, peak, 100*share)
	if peak > maxRSS {
		t.Errorf("RSS %d kB, peak %d kB, want at most %d", rss, peak, maxRSS)
	}
	if share > maxShare {
		t.Errorf("%.2f %% of a core with %d updates of pods a second, want at most %.2f %%", 100*share, updates, 100*maxShare)
	}
}

func (n *node) create(do func() error) {
	n.T.Helper()
	if err := do(); err != nil {
		n.T.Fatal(err)
	}
}

// many calls do for each number below count, eight at a time.
func (n *node) many(count int, do func(i int) error) {
	n.T.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	for range 8 {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					n.T.Error(err)
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	wg.Wait()
}

// bigPod is a pod with labels, variables and conditions, as controllers make them: 6 kB. Some are of this node.
func bigPod(i int) *corev1.Pod {
	workload := i % 2000
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:   fmt.Sprintf("app-%d-5d4f8c7b9-%05d", workload, i),
		Labels: map[string]string{"app": fmt.Sprint("app-", workload), "pod-template-hash": "5d4f8c7b9", "tier": fmt.Sprint("tier-", workload%5)},
	}}
	if p.Spec.NodeName = "another"; i%100 == 0 {
		p.Spec.NodeName = self
	}
	for c := range 2 {
		container := corev1.Container{Name: fmt.Sprint("c", c), Image: "registry.example.org/team/app:v1", Ports: []corev1.ContainerPort{{Name: fmt.Sprint("http-", c), ContainerPort: int32(8080 + c)}}}
		for e := range 25 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", e), Value: "a value that is about as long as values are in a cluster"})
		}
		p.Spec.Containers = append(p.Spec.Containers, container)
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.244.%d.%d", i>>8, i&255), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.244.%d.%d", i>>8, i&255)}, {IP: fmt.Sprintf("fd24::1:%x", i)}}}
	for c := range 5 {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("Condition", c)), Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	return p
}

// bigPolicy has three rules, two of which are for pods.
func bigPolicy(i int) *networkingv1.NetworkPolicy {
	app := func(i int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", i%2000)}}
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("policy-", i)},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: *app(i), Ingress: []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{PodSelector: app(i + 100)}}},
			{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": fmt.Sprint("tier-", i%5)}}}}},
			{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.0.2.%d/32", i%250)}}}},
		}},
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
