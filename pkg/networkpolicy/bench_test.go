// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	. "github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// benchCluster is as large as docs/dev/adr/0062-networkpolicy-classes.md says: 10,000 pods with two addresses each, of 2,000 workloads in
// 200 namespaces, 110 of them on this node in 40 namespaces, and 1,000 policies of three rules.
type benchCluster struct {
	namespaces []Namespace
	pods       []Pod
	policies   []Policy
}

const (
	benchNamespaces = 200
	benchPods       = 10000
	benchPolicies   = 1000
	benchLocal      = 110
)

func benchNamespace(i int) Namespace {
	name := fmt.Sprint("team-", i)
	return Namespace{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name, "team": fmt.Sprint("t", i%20), "env": fmt.Sprint("e", i%3)}}
}

// benchPod is the i-th pod: 50 in each namespace, five of each workload.
func benchPod(i int) Pod {
	ns := i % benchNamespaces
	workload := i / benchNamespaces % 10
	p := Pod{
		UID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i), Namespace: fmt.Sprint("team-", ns), Node: "elsewhere", Created: time.Unix(int64(i), 0),
		Labels: map[string]string{"app": fmt.Sprint("app-", workload), "pod-template-hash": fmt.Sprint("h", ns, workload), "tier": fmt.Sprint("tier-", workload%3), "release": "stable"},
		Addrs:  []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i % 100), byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0xfd, 0, 0, byte(i % 100), 14: byte(i >> 8), 15: byte(i)})},
		Ports:  []NamedPort{{Name: "http", Protocol: TCP, Number: uint16(8080 + workload%2)}},
	}
	if ns < 40 && i < benchNamespaces*3 && i/benchNamespaces*40+ns < benchLocal {
		p.Node = "here"
	}
	return p
}

func benchPolicy(i int) Policy {
	ns := fmt.Sprint("team-", i%benchNamespaces)
	j := i / benchNamespaces
	web := func(n int) Selector {
		return Selector{{Key: "app", Operator: In, Values: []string{fmt.Sprint("app-", n%10)}}}
	}
	team := PodSelector{Namespaces: Selector{{Key: "team", Operator: In, Values: []string{fmt.Sprint("t", i%20)}}}, Pods: web(i + 3)}
	if i%20 == 0 {
		team = PodSelector{} // all pods
	}
	p := Policy{Namespace: ns, Name: fmt.Sprint("policy-", i), Tier: NetworkPolicies, Subject: PodSelector{Namespace: ns, Pods: web(2 * j)}, Isolates: [2]bool{true, true}}
	if j == 0 {
		p.Subject.Pods = nil
	}
	p.Rules[Ingress] = []Rule{
		{Peers: []Peer{{Pods: &PodSelector{Namespace: ns, Pods: web(j + 1)}}}, Ports: []Port{{Protocol: TCP, First: 8080, Last: 8081}}},
		{Peers: []Peer{{Pods: &team}}, Ports: []Port{{Protocol: TCP, Name: "http"}}},
	}
	p.Rules[Egress] = []Rule{{Peers: []Peer{
		{Block: &Block{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		{Pods: &PodSelector{Pods: web(j + 2)}},
	}, Ports: []Port{{Protocol: TCP, First: 443, Last: 443}, {Protocol: UDP, First: 53, Last: 53}, {Protocol: TCP, Name: "http"}}}}
	return p
}

func newBenchCluster() *benchCluster {
	c := &benchCluster{}
	for i := range benchNamespaces {
		c.namespaces = append(c.namespaces, benchNamespace(i))
	}
	for i := range benchPods {
		c.pods = append(c.pods, benchPod(i))
	}
	for i := range benchPolicies {
		c.policies = append(c.policies, benchPolicy(i))
	}
	return c
}

func (c *benchCluster) engine() (*Engine, Batch) {
	e := New(Config{Node: "here", PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/32")}})
	for _, n := range c.namespaces {
		e.UpsertNamespace(n)
	}
	for _, p := range c.policies {
		e.UpsertPolicy(p)
	}
	for _, p := range c.pods {
		e.UpsertPod(p)
	}
	return e, e.Commit()
}

// What an agent does when it starts.
func BenchmarkFullCompute(b *testing.B) {
	c := newBenchCluster()
	for b.Loop() {
		e, batch := c.engine()
		size := e.Stats()
		b.ReportMetric(float64(len(batch.Changes)), "changes")
		b.ReportMetric(float64(size.Classes), "classes")
		b.ReportMetric(float64(size.Points), "points")
		b.ReportMetric(float64(size.Sets), "sets")
	}
}

// A replica of a known workload comes, and goes.
func BenchmarkPodUpsert(b *testing.B) {
	e, batch := newBenchCluster().engine()
	e.Settled(batch)
	p := benchPod(4321)
	p.UID, p.Addrs = "another", addrs("10.9.9.9 fd00:9::9")
	changes := 0
	for b.Loop() {
		e.UpsertPod(p)
		changes += len(e.Commit().Changes)
		b.StopTimer()
		e.DeletePod(p.UID)
		e.Settled(e.Commit())
		b.StartTimer()
	}
	b.ReportMetric(float64(changes)/float64(b.N), "changes/op")
}

// A pod with labels that no other pod has, such as a Job's.
func BenchmarkNewKind(b *testing.B) {
	e, batch := newBenchCluster().engine()
	e.Settled(batch)
	p := benchPod(4321)
	n := 0
	for b.Loop() {
		n++
		p.UID, p.Addrs = "another", addrs("10.9.9.9 fd00:9::9")
		p.Labels = map[string]string{"app": "app-3", "job": fmt.Sprint(n)}
		e.UpsertPod(p)
		e.Settled(e.Commit())
	}
}

// A policy of a namespace with local pods changes.
func BenchmarkPolicyUpsert(b *testing.B) {
	benchmarkPolicy(b, func(p *Policy, n int) { p.Rules[Ingress][0].Ports[0].Last = uint16(8081 + n%1000) })
}

// A policy of a namespace with local pods names another block, of pods' addresses.
func BenchmarkBlockChange(b *testing.B) {
	benchmarkPolicy(b, func(p *Policy, n int) {
		p.Rules[Egress][0].Peers[0].Block = &Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n % 100)}), 16)}
	})
}

// benchmarkPolicy changes a policy for the n-th time.
func benchmarkPolicy(b *testing.B, change func(p *Policy, n int)) {
	e, batch := newBenchCluster().engine()
	e.Settled(batch)
	p := benchPolicy(1)
	n, changes := 0, 0
	for b.Loop() {
		n++
		change(&p, n)
		e.UpsertPolicy(p)
		batch := e.Commit()
		changes += len(batch.Changes)
		e.Settled(batch)
	}
	b.ReportMetric(float64(changes)/float64(b.N), "changes/op")
}

// New namespaces against 10,000 policies whose peers are selected by namespace labels, all of them for pods of this node. This was
// 7.55 s in an engine without an index (openshift/sdn#36).
func BenchmarkManyNamespaces(b *testing.B) {
	c := newBenchCluster()
	for i := range 10000 {
		ns := fmt.Sprint("team-", i%40)
		tenant := PodSelector{Namespaces: Selector{{Key: "tenant", Operator: In, Values: []string{fmt.Sprint("tenant-", i)}}}}
		c.policies = append(c.policies, Policy{
			Namespace: ns, Name: fmt.Sprint("tenant-", i), Tier: NetworkPolicies, Subject: PodSelector{Namespace: ns}, Isolates: [2]bool{true, false},
			Rules: [2][]Rule{{{Peers: []Peer{{Pods: &tenant}}}}, nil},
		})
	}
	e, batch := c.engine()
	e.Settled(batch)
	n := 0
	for b.Loop() {
		n++
		name := fmt.Sprint("new-", n)
		e.UpsertNamespace(Namespace{Name: name, Labels: map[string]string{"tenant": fmt.Sprint("tenant-", n%10000)}})
		p := benchPod(4321)
		p.UID, p.Namespace, p.Addrs = name, name, []netip.Addr{netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)})}
		e.UpsertPod(p)
		e.Settled(e.Commit())
	}
}

// A node has a record of each pod of the cluster.
func TestPodRecordSize(t *testing.T) {
	c := newBenchCluster()
	const pods = 40000
	for i := benchPods; i < benchPods+pods; i++ {
		p := benchPod(i % benchPods)
		p.UID, p.Addrs = fmt.Sprint("more-", i), []netip.Addr{netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})}
		p.Node = "elsewhere"
		c.pods = append(c.pods, p)
	}
	e, batch := (&benchCluster{c.namespaces, c.pods[:benchPods], c.policies}).engine()
	e.Settled(batch)
	before := heap()
	for _, p := range c.pods[benchPods:] {
		e.UpsertPod(p)
	}
	e.Settled(e.Commit())
	each := float64(heap()-before) / pods
	runtime.KeepAlive(c)
	t.Logf("%.0f bytes for each pod with one address", each)
	if each > 200 {
		t.Errorf("%.0f bytes for each pod", each)
	}
	runtime.KeepAlive(e)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
