// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Two nodes have one podCIDR: the older one keeps it, the younger one gets no network, and an Event says so. When the older one is gone, the
// younger one has it.
func TestPrivilegedAgentPodCIDRConflict(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.addNode("node-b", 2, "10.244.1.0/24", "fd24:0:0:2::/64")
	e2etest.MustRun(t, n.Node, "sleep 1.1") // the API server's times are whole seconds
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	agent := n.start()
	n.awaitNot("PodCIDRConflict")
	n.awaitEvent("PodCIDRConflict", "node node-b has had it for longer")
	if got := n.read(network); got != "" {
		t.Errorf("a network in spite of the conflict:\n%s", got)
	}
	metrics(t, n, `sluice_agent_problem{reason="PodCIDRConflict"} 1`)
	n.deleteNode("node-b")
	n.awaitReady()
	before := n.read(network)

	// A younger node that claims the same changes nothing here, and gets no route.
	n.addNode("node-c", 3, "10.244.1.0/25", "fd24:0:0:3::/64")
	n.awaitRoute("fd24:0:0:3::/64", "2001:db8:1::3", true)
	n.awaitReady()
	if got := n.read(network); got != before || strings.Contains(n.routes(), "10.244.1.0") {
		t.Errorf("a younger node has changed the network, or has a route:\n%s\n%s", got, n.routes())
	}
	agent.Signal(unix.SIGTERM)
}

// The Node object goes: all stays. It comes back with other podCIDRs: with ptp the next pod has an address of them, and the DEL
// of pods from before works.
func TestPrivilegedAgentPodCIDRChanges(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	n.addNode("node-b", 2, "10.244.2.0/24", "fd24:0:0:2::/64")
	n.start()
	n.awaitReady()
	old := n.AddPod(n.runtime(), "old")
	before, routes := n.read(network), n.routes()
	n.deleteNode(self)
	n.awaitNot("PodCIDRMissing")
	if n.read(network) != before || n.routes() != routes {
		t.Errorf("the network went with the Node object, or routes did:\n%s\n%s", n.read(network), n.routes())
	}
	n.addNode(self, 1)
	n.awaitEvent("PodCIDRMissing", "spec.podCIDRs is empty")
	if n.read(network) != before {
		t.Errorf("a Node without podCIDRs has changed the network:\n%s", n.read(network))
	}
	n.deleteNode(self)
	n.addNode(self, 1, "10.244.7.0/24", "fd24:0:0:7::/64")
	n.awaitReady()
	fresh := n.AddPod(n.runtime(), "fresh")
	if !strings.HasPrefix(fresh.IP4.String(), "10.244.7.") || !strings.HasPrefix(fresh.IP6.String(), "fd24:0:0:7:") {
		t.Errorf("addresses %s and %s", fresh.IP4, fresh.IP6)
	}
	if err := old.Check(); err != nil {
		t.Errorf("CHECK of the pod from before: %v", err)
	}
	old.MustDel()
	fresh.MustDel()
}

// Pods on a bridge share its gateway. So a change waits until those with addresses from before are gone.
func TestPrivilegedAgentPodCIDRChangesOnBridge(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configure("network: {plugin: bridge}")
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	n.start()
	n.awaitReady()
	old := n.AddPod(n.runtime(), "old")
	before := n.read(network)
	n.deleteNode(self)
	n.addNode(self, 1, "10.244.7.0/24", "fd24:0:0:7::/64")
	n.awaitEvent("PodCIDRChanged", "drain the node")
	if n.read(network) != before {
		t.Errorf("the network has changed while a pod uses it:\n%s", n.read(network))
	}
	old.MustDel()
	e2etest.Eventually(t, 20*time.Second, func() error { // nothing else changes: the agent looks by itself
		if !strings.Contains(n.read(network), "10.244.7.0/24") {
			return errOld
		}
		return nil
	})
	n.awaitReady()
	fresh := n.AddPod(n.runtime(), "fresh")
	if !strings.HasPrefix(fresh.IP4.String(), "10.244.7.") {
		t.Errorf("address %s", fresh.IP4)
	}
	fresh.MustDel()
}

// An administrator's file that cannot be read stays, and no network is written. Set right, it is taken.
func TestPrivilegedAgentBadNodeConfig(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const bad = `{"backend": "xdp"}`
	n.Configure(bad)
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	n.start()
	n.awaitNot(`invalid backend "xdp"`)
	n.awaitEvent("MasqueradeFailed", "/etc/sluice/config.json")
	if n.read("/etc/sluice/config.json") != bad || n.read(network) != "" {
		t.Errorf("the file is %q, the network %q", n.read("/etc/sluice/config.json"), n.read(network))
	}
	n.Configure(`{"backend": "auto"}`)
	n.awaitReady()
}

// A full disk is told, and leaves no part of a network. With room, the network is written.
func TestPrivilegedAgentDiskFull(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	e2etest.RunScript(t, n.World, `mkdir -p `+confDir+`; mount -t tmpfs -o size=4k tmpfs `+confDir+`; echo x > `+confDir+`/.full`)
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	n.start()
	n.awaitEvent("NetworkFailed", "no space left on device")
	metrics(t, n, `sluice_agent_problem{reason="NetworkFailed"} 1`)
	if got := strings.Fields(e2etest.MustRun(t, n.Node, "ls -A "+confDir)); len(got) != 1 {
		t.Errorf("a full disk has %q, want the file that fills it", got)
	}
	e2etest.RunScript(t, n.World, "rm "+confDir+"/.full")
	n.awaitReady()
	metrics(t, n, `sluice_agent_problem{reason="NetworkFailed"} 0`)
}
