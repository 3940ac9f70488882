// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// shop has a pod that another one may reach, on top of what bubble makes.
func (n *node) shop() {
	n.put(policy("p", "db", "web"), pod("shop", "db", "db", "10.0.0.1"), pod("shop", "web", "web", "10.0.0.2"), pod("shop", "other", "other", "10.0.0.3"))
}

// An API server that answers for some kinds only must not have half of the state applied: bug class 62.
func TestNothingBeforeAllLists(t *testing.T) {
	for _, late := range resources {
		t.Run(string(late), func(t *testing.T) {
			bubble(t, func(n *node) {
				n.shop()
				release := make(chan struct{})
				n.hold[late] = release
				n.start()
				wait(time.Minute)
				if n.happened().begun != 0 {
					t.Errorf("%d generations were begun before the list of %s", n.happened().begun, late)
				}
				close(release)
				wait(10 * time.Millisecond)
				if got := n.happened(); got.begun != 1 || got.applied != 1 || got.finished != 1 {
					t.Errorf("%+v, want one of each", got)
				}
				n.admits("db", "10.0.0.2", true)
				n.admits("db", "10.0.0.3", false)
			})
		})
	}
}

func TestChanges(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.start()
		wait(time.Second)
		n.put(pod("shop", "other", "web", "10.0.0.3"))
		wait(2 * batchDelay)
		n.admits("db", "10.0.0.3", true)
		n.put(pod("shop", "other", "other", "10.0.0.3"))
		wait(2 * batchDelay)
		n.admits("db", "10.0.0.3", false)
		n.put(policy("p", "db", "other"))
		wait(2 * batchDelay)
		n.admits("db", "10.0.0.3", true)
		n.admits("db", "10.0.0.2", false)
		n.remove(pod("shop", "other", "other", "10.0.0.3"))
		n.put(pod("shop", "again", "web", "10.0.0.3")) // its address is used again
		wait(2 * batchDelay)
		n.admits("db", "10.0.0.3", false)
		if n.open("shop") || !n.open("bank") {
			t.Error("namespaces: shop has a policy, bank has none")
		}
		n.remove(policy("p", "db", "other"))
		wait(2 * batchDelay)
		n.admits("db", "10.0.0.3", true)
		if !n.open("shop") {
			t.Error("shop has no policy any more")
		}
		if n.happened().begun != 1 {
			t.Errorf("%d generations", n.happened().begun)
		}
	})
}

// A pod has its set when it is scheduled: bug class 1. Its own address comes later.
func TestPodBeforeItsAddress(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.start()
		wait(time.Second)
		p := pod("shop", "new", "db", "")
		p.Spec.NodeName = ""
		n.put(p)
		wait(2 * batchDelay)
		n.admits("new", "10.0.0.2", false)
		n.put(pod("shop", "new", "db", ""))
		wait(2 * batchDelay)
		n.admits("new", "10.0.0.2", true)
		n.admits("new", "10.0.0.3", false)
	})
}

// Changes that come together are one batch, and a flood is cut into batches.
func TestBatches(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.start()
		wait(time.Second)
		before := n.happened().applied
		for range 10 {
			n.put(pod("shop", "other", "web", "10.0.0.3"), pod("shop", "web", "web", "10.0.0.2"))
		}
		wait(2 * batchDelay)
		if n.happened().applied != before+1 {
			t.Errorf("%d batches for changes of one moment", n.happened().applied-before)
		}
		before = n.happened().applied
		n.put(pod("shop", "other", "web", "10.0.0.3")) // says nothing new
		wait(2 * batchDelay)
		if n.happened().applied != before {
			t.Error("nothing was applied")
		}
	})
}

// While the API server is away nothing changes, and the watch goes on where it ended.
func TestOutage(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.start()
		wait(time.Second)
		n.cut(false, errDown)
		wait(time.Hour)
		n.admits("db", "10.0.0.2", true)
		n.admits("db", "10.0.0.3", false)
		if got := n.Report.Problems(); len(got) != 3 || !strings.Contains(got[0], string(report.NoAnswer)) {
			t.Errorf("problems %q", got)
		}
		n.put(pod("shop", "other", "web", "10.0.0.3"))
		n.remove(pod("shop", "web", "web", "10.0.0.2"))
		n.cut(false, nil)
		wait(2 * longestWait)
		n.admits("db", "10.0.0.2", false)
		n.admits("db", "10.0.0.3", true)
		if lists, _ := n.asked(); lists != 1 {
			t.Errorf("%d lists of pods", lists)
		}
		if got := n.Report.Problems(); len(got) != 0 {
			t.Errorf("problems %q", got)
		}
	})
}

// Watches that end at once are not asked for all the time.
func TestShortWatches(t *testing.T) {
	bubble(t, func(n *node) {
		n.start()
		for range 6000 {
			n.cut(false, nil)
			wait(10 * time.Millisecond)
		}
		if _, got := n.asked(); got > 30 {
			t.Errorf("%d watches in a minute", got)
		}
	})
}

// After a gap, what went in it goes from the tables, and pods are never without their policies in between.
func TestGap(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.put(policy("second", "other", "web"))
		n.start()
		wait(time.Second)
		n.watchOver(func(tables *networkpolicy.Tables) {
			if tables.Lookup("db", networkpolicy.Ingress, netip.MustParseAddr("192.0.2.1"), networkpolicy.TCP, 80) == networkpolicy.Admitted || tables.Open("shop") {
				t.Error("policies do not hold while lists are read")
			}
		})
		n.cut(true, errDown)
		n.remove(pod("shop", "web", "web", "10.0.0.2"), policy("second", "other", "web"), namespace("bank"))
		n.put(pod("shop", "new", "web", "10.0.0.4"))
		n.cut(true, nil)
		wait(2 * longestWait)
		n.admits("db", "10.0.0.2", false)
		n.admits("db", "10.0.0.4", true)
		n.admits("other", "192.0.2.1", true)
		if n.open("bank") {
			t.Error("bank is gone")
		}
		if lists, _ := n.asked(); lists != 2 || n.happened().begun != 1 {
			t.Errorf("%d generations, %d lists", n.happened().begun, lists)
		}
	})
}

// Tables that cannot be written are begun anew, with everything, and the old ones answer until then.
func TestTablesFail(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.start()
		wait(time.Second)
		n.fail(errors.New("no space"))
		n.put(pod("shop", "other", "web", "10.0.0.3"))
		wait(time.Second)
		n.put(pod("shop", "new", "web", "10.0.0.4"))
		wait(time.Minute)
		n.admits("db", "10.0.0.2", true)
		n.admits("db", "10.0.0.3", false)
		if n.happened().begun < 5 || n.happened().begun > 30 {
			t.Errorf("%d generations in a minute", n.happened().begun)
		}
		if got := n.Report.Problems(); len(got) != 1 || !strings.Contains(got[0], "NetworkPolicyFailed: what was in force stays, and new pods wait: no space") {
			t.Errorf("problems %q", got)
		}
		n.fail(nil)
		wait(longestRetry)
		n.admits("db", "10.0.0.2", true)
		n.admits("db", "10.0.0.3", true)
		n.admits("db", "10.0.0.4", true)
		n.admits("db", "10.0.0.5", false)
		if got := n.Report.Problems(); len(got) != 0 || n.happened().finished != 2 {
			t.Errorf("problems %q, %d generations in force", got, n.happened().finished)
		}
		n.put(pod("shop", "other", "other", "10.0.0.3"))
		wait(2 * batchDelay)
		n.admits("db", "10.0.0.3", false)
	})
}

// Programs may be loaded after the agent has started.
func TestProgramsComeLater(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.fail(errors.New("not loaded"))
		n.start()
		for i := range 100 { // nothing of this is kept
			n.put(policy("p", "db", "web"+strings.Repeat("x", i)))
			wait(100 * time.Millisecond)
		}
		n.put(policy("p", "db", "web"))
		if got := n.Report.Problems(); len(got) != 0 {
			t.Errorf("problems %q", got)
		}
		n.fail(nil)
		wait(longestRetry)
		n.admits("db", "10.0.0.2", true)
		n.admits("db", "10.0.0.3", false)
		if got := n.happened().highest; got > 10 {
			t.Errorf("points up to %d: those of policies that were never applied are not used again", got)
		}
	})
}

// Numbers that were removed are used again, but not at once.
func TestSettles(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		n.start()
		wait(time.Second)
		change := func() networkpolicy.Point {
			for i := range 40 {
				n.put(policy("p", "db", "web"+strings.Repeat("x", i)))
				wait(50 * time.Millisecond)
			}
			return n.happened().highest
		}
		first := change()
		wait(time.Minute)
		if second := change(); first < 35 || second > first+1 {
			t.Errorf("points up to %d, and a minute later up to %d", first, second)
		}
	})
}

func TestProblems(t *testing.T) {
	bubble(t, func(n *node) {
		n.shop()
		bad := policy("bad", "other", "web")
		bad.Spec.Ingress[0].From = append(bad.Spec.Ingress[0].From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0"}})
		n.put(bad, pod("nowhere", "lost", "x", "10.0.0.7"))
		n.start()
		wait(5 * time.Second)
		want := []string{
			"closed pods: PodsClosed: 1 pods of this node admit nothing, because their policies cannot be kept; the first: nowhere/lost: the namespace is unknown",
			`fields of network policies: NetworkPolicyUnsupported: 1 NetworkPolicies have parts that cannot be used and accept nothing; the first: shop/bad: spec.ingress[0].from[1].ipBlock.cidr "10.0.0.0": is no network such as 192.0.2.0/24 or 2001:db8::/32, without leading zeros`,
		}
		if got := n.Report.Problems(); !slices.Equal(got, want) {
			t.Errorf("problems %q", got)
		}
		n.admits("other", "10.0.0.2", true) // what can be used is
		n.admits("other", "10.0.0.1", false)
		var text bytes.Buffer
		if err := n.WriteMetrics(&text); err != nil {
			t.Error(err)
		}
		for _, line := range []string{"closed_pods 1\n", "unsupported_policies 1\n", "policies 2\n", "pods 4\n", "local_pods 4\n", "open_namespaces 1\n", "apply_seconds_count 1\n", "failures_total 0\n", "lists_total 3\n"} {
			if !strings.Contains(text.String(), "\n"+prefix+line) {
				t.Errorf("no %q in\n%s", line, text.String())
			}
		}
		n.put(policy("bad", "other", "web"), namespace("nowhere"))
		wait(5 * time.Second)
		if got := n.Report.Problems(); len(got) != 0 {
			t.Errorf("problems %q", got)
		}
	})
}

// A namespace that is known a moment after its pod is no problem.
func TestLateNamespace(t *testing.T) {
	bubble(t, func(n *node) {
		n.start()
		wait(time.Second)
		for i := range 20 {
			n.put(pod("late", "p", "x", "10.0.0.7"))
			wait(time.Duration(i) * 50 * time.Millisecond)
			n.put(namespace("late"))
			wait(time.Second)
			n.remove(pod("late", "p", "x", "10.0.0.7"), namespace("late"))
			wait(time.Second)
		}
		var text bytes.Buffer
		if err := n.Report.WriteMetrics(&text); err != nil || !strings.Contains(text.String(), `problems_total{reason="PodsClosed"} 0`) {
			t.Errorf("%v: %s", err, text.String())
		}
	})
}

func TestForbidden(t *testing.T) {
	bubble(t, func(n *node) {
		n.cut(false, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no role")))
		n.start()
		wait(time.Second)
		if got := n.Report.Problems(); len(got) != 3 || !strings.Contains(got[0], string(report.NetworkPolicyFailed)) {
			t.Errorf("problems %q", got)
		}
	})
}

// A static pod is known by the hash of its manifest. Nobody else gets that name while it has it.
func TestStaticPods(t *testing.T) {
	const hash, other = "5d8b09d7dd5ea3d6e5bf6c2bd4a1cf61", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	bubble(t, func(n *node) {
		static := func(name, uid, hash, app string) *corev1.Pod {
			p := pod("shop", name, app, "")
			p.UID = types.UID(uid)
			p.Annotations = map[string]string{"kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash}
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "here"}}
			return p
		}
		n.shop()
		n.put(static("db-here", "uid-1", hash, "db"))
		n.start()
		wait(time.Second)
		n.admits(hash, "10.0.0.2", true)
		n.admits(hash, "10.0.0.3", false)
		fake := static("fake", "uid-2", hash, "free") // no policy is about it
		n.put(fake)
		wait(time.Second)
		n.admits(hash, "10.0.0.3", false)
		n.admits("uid-2", "10.0.0.3", true)
		n.remove(fake)
		wait(time.Second)
		n.admits(hash, "10.0.0.2", true)
		// Somebody deletes the mirror pod while nobody watches, and kubelet makes it again.
		n.cut(true, errDown)
		n.remove(static("db-here", "uid-1", hash, "db"))
		n.put(static("db-here", "uid-3", hash, "db"))
		n.cut(true, nil)
		wait(2 * longestWait)
		n.admits(hash, "10.0.0.2", true)
		// Another manifest.
		n.remove(static("db-here", "uid-3", hash, "db"))
		n.put(static("db-here", "uid-4", other, "db"))
		wait(time.Second)
		n.admits(hash, "10.0.0.2", false)
		n.admits(other, "10.0.0.2", true)
		// It is a mirror pod no longer.
		p := static("db-here", "uid-4", other, "db")
		p.OwnerReferences = nil
		n.put(p)
		wait(time.Second)
		n.admits(other, "10.0.0.2", false)
		n.admits("uid-4", "10.0.0.2", true)
	})
}

// Addresses of nodes are known as such, and a network of pods that is new has everything read again after a while.
func TestNodes(t *testing.T) {
	bubble(t, func(n *node) {
		n.put(pod("shop", "db", "db", "10.0.0.1"))
		block := policy("p", "db", "web")
		block.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/16"}}}
		n.put(block)
		cluster := Cluster{NodeAddrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		change := func() {
			now := cluster
			n.cluster.Store(&now)
			select {
			case n.changed <- struct{}{}:
			default:
			}
		}
		change()
		n.start()
		wait(time.Second)
		n.admits("db", "10.0.1.0", true)
		peers := n.size().Peers
		cluster.NodeAddrs = append(cluster.NodeAddrs, netip.MustParseAddr("10.0.1.0"))
		cluster.PodNetworks = append(cluster.PodNetworks, netip.MustParsePrefix("10.0.1.0/24"))
		change()
		wait(time.Second)
		if got := n.size().Peers; got != peers+1 {
			t.Errorf("%d addresses, want one more than %d", got, peers)
		}
		wait(2 * renewTime)
		if n.happened().begun != 1 {
			t.Errorf("%d generations", n.happened().begun)
		}
		cluster.PodNetworks = append(cluster.PodNetworks, netip.MustParsePrefix("172.16.0.0/24"))
		change()
		wait(renewTime / 2)
		if n.happened().begun != 1 {
			t.Errorf("%d generations", n.happened().begun)
		}
		wait(renewTime)
		if n.happened().begun != 2 {
			t.Errorf("%d generations, want another one", n.happened().begun)
		}
		n.admits("db", "10.0.1.0", true)
	})
}
