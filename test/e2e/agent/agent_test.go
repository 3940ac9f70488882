// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A node without anything gets plugins, routes, exemptions and the network, in both families, and a pod starts. All of it follows the Node
// objects, and goes with "remove".
func TestPrivilegedAgentJoins(t *testing.T) {
	t.Parallel()
	n := newNode(t, netlab.Options{Uplinks: []netlab.Uplink{func() netlab.Uplink { u := netlab.DefaultUplink(0); u.MTU = 1400; return u }()}})
	n.Configure(`{"relearnSeconds": 7, "nonMasqueradeCIDRs": ["198.51.100.0/24"]}`)
	agent := n.start()
	n.awaitNot("PodCIDRMissing")
	if got := n.read(network); got != "" {
		t.Errorf("a network without a Node object:\n%s", got)
	}
	n.addNode("node-b", 2, "10.244.2.0/24", "fd24:0:0:2::/64")
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	n.awaitReady()

	n.awaitRoute("10.244.2.0/24", "192.0.2.2", true)
	n.awaitRoute("fd24:0:0:2::/64", "2001:db8:1::2", true)
	var list struct {
		CNIVersion, Name string
		Plugins          []struct {
			Type   string
			MTU    int
			IPMasq bool
			IPAM   struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal([]byte(n.read(network)), &list); err != nil {
		t.Fatal(err)
	}
	main := list.Plugins[0]
	if main.Type != "ptp" || main.MTU != 1400 || !main.IPMasq || len(list.Plugins) != 4 || list.Name != "sluice" ||
		main.IPAM.Ranges[0][0].Subnet != "10.244.1.0/24" || main.IPAM.Ranges[1][0].Subnet != "fd24:0:0:1::/64" {
		t.Errorf("network:\n%s", n.read(network))
	}
	wantExempt := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd24::/48"),
		netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/108")}
	if diff := cmp.Diff(wantExempt, n.exempt(), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("exempt (-want +got):\n%s", diff)
	}
	if text := n.read("/etc/sluice/config.json"); !strings.Contains(text, `"relearnSeconds": 7`) {
		t.Errorf("the administrator's key is gone:\n%s", text)
	}
	pod := n.AddPod(n.runtime(), "p1", e2etest.TCP(8080, 80))
	if !netip.MustParsePrefix("10.244.1.0/24").Contains(pod.IP4) || !netip.MustParsePrefix("fd24:0:0:1::/64").Contains(pod.IP6) {
		t.Errorf("addresses %s and %s", pod.IP4, pod.IP6)
	}

	n.deleteNode("node-b")
	n.awaitRoute("10.244.2.0/24", "192.0.2.2", false)
	n.awaitRoute("fd24:0:0:2::/64", "2001:db8:1::2", false)
	metrics(t, n, "sluice_agent_network_writes_total 1", `sluice_agent_problem{reason="PodCIDRMissing"} 0`)
	agent.Signal(unix.SIGTERM)
	if n.read(network) == "" {
		t.Error("the network went with the agent")
	}

	// The pod needs the network and the plugins for its DEL. No other pod starts.
	out, err := n.remove()
	if err == nil || !strings.Contains(out, "attached pods need the plugins") || n.read(network) == "" {
		t.Errorf("remove with a pod: %v, %s", err, out)
	}
	if err := n.NewPod(n.runtime(), "late").TryAdd(); err == nil || !strings.Contains(err.Error(), "takes no new pods") {
		t.Errorf("ADD while the node leaves: %v", err)
	}
	pod.MustDel()
	if !n.loaded() {
		t.Error("the last DEL has unloaded the datapath: this is no test of remove")
	}
	if out, err := n.remove(); err != nil {
		t.Errorf("remove: %v, %s", err, out)
	}
	n.wantRemoved()
	if got := n.exempt(); len(got) != 1 {
		t.Errorf("exempt after remove: %v", got)
	}
}

// "sluice agent" is the program beside sluice.
func TestPrivilegedAgentByTool(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"version": "sluice-agent ", "schema": `"title": "Configuration of sluice-agent"`, "--help": "sluice-agent remove"} {
		out, err := netlab.Run(e2etest.Programs.Path("sluice"), "agent", args)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("sluice agent %s: %v, %s", args, err, out)
		}
	}
	path := t.TempDir() + "/agent.yaml"
	if err := os.WriteFile(path, []byte("routing: vlxan"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := netlab.Run(e2etest.Programs.Path("sluice"), "agent", "check-config", path); err == nil || !strings.Contains(err.Error()+out, `invalid routing "vlxan"`) {
		t.Errorf("check-config: %v, %s", err, out)
	}
}

func metrics(t *testing.T, n *node, want ...string) {
	t.Helper()
	code, body, err := n.ask("/metrics")
	if err != nil || code != 200 {
		t.Fatalf("%d, %v", code, err)
	}
	for _, line := range want {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %q in\n%s", line, body)
		}
	}
}

// A change of the exemptions reaches the maps of a running datapath at once.
func TestPrivilegedAgentExemptAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	agent := n.start()
	n.awaitReady()
	var empty struct{ Loaded bool }
	if err := n.sluice(&empty, "status"); err != nil || !empty.Loaded {
		t.Errorf("ready, and the first ADD would have to load the programs: %v", err)
	}
	n.AddPod(n.runtime(), "p1")
	metrics(t, n, "sluice_datapath_loaded 1", `sluice_look_failed{part="datapath"} 0`, `sluice_attachments{network="sluice"} 1`,
		`sluice_cni_verb_duration_seconds_count{plugin="ptp",result="success",verb="ADD"} 1`, "sluice_agent_node_metrics_failed_total 0")
	// loaded says that the maps have as many networks, and the programs' configuration the one.
	loaded := func(entries int, network string) error {
		var status struct {
			Maps []struct {
				Name    string
				Entries int
			}
		}
		var pools struct{ Exemptions []string }
		// While resync loads the programs anew, the tool says that they are not there.
		if err := errors.Join(n.sluice(&status, "status"), n.sluice(&pools, "nat", "pools")); err != nil {
			return err
		}
		for _, m := range status.Maps {
			if m.Name == "sl_nomasq_cidrs" && m.Entries == entries && slices.Contains(pools.Exemptions, network) {
				return nil
			}
		}
		return fmt.Errorf("want %d entries and %s: %v, %v", entries, network, status.Maps, pools.Exemptions)
	}
	if err := loaded(4, "10.244.0.0/16"); err != nil {
		t.Errorf("with the first pod: %v", err)
	}
	agent.Signal(unix.SIGTERM)
	n.configure(`nonMasqueradeCIDRs: [203.0.113.0/24]`)
	n.start()
	e2etest.Eventually(t, patient, func() error { return loaded(5, "203.0.113.0/24") })
	n.awaitReady()
}

// The API server is away: nothing on the node changes, also when the agent starts at that time, and pods start. Then the node follows again.
func TestPrivilegedAgentOutage(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	n.addNode("node-b", 2, "10.244.2.0/24", "fd24:0:0:2::/64")
	agent := n.start()
	n.awaitReady()
	n.awaitRoute("10.244.2.0/24", "192.0.2.2", true)
	// What is on the node once a pod has come and gone.
	settled := n.AddPod(n.runtime(), "p0")
	settled.MustDel()
	before := state(n)

	n.api.Stop()
	time.Sleep(netlab.Patient(5 * time.Second)) // some of the agent's own looks and retries
	n.AddPod(n.runtime(), "p1").MustDel()
	if diff := netlab.DiffSoon(before, func() netlab.Snapshot { return state(n) }); diff != "" {
		t.Errorf("with the API server away:\n%s", diff)
	}
	if code, body, err := n.ask("/readyz"); err != nil || code != 200 {
		t.Errorf("readyz: %d, %s, %v", code, body, err)
	}
	agent.Signal(unix.SIGKILL)
	n.start()
	n.awaitNot("has not answered")
	n.AddPod(n.runtime(), "p2").MustDel()
	if diff := netlab.DiffSoon(before, func() netlab.Snapshot { return state(n) }); diff != "" {
		t.Errorf("after the agent started without an API server:\n%s", diff)
	}

	n.api.Start()
	n.deleteNode("node-b")
	n.addNode("node-c", 3, "10.244.3.0/24", "fd24:0:0:3::/64")
	n.awaitRoute("10.244.3.0/24", "192.0.2.3", true)
	n.awaitRoute("10.244.2.0/24", "192.0.2.2", false)
	n.awaitReady()
}

// state is all of the node that the agent could change, and not what passes: neighbours, and connections to the API server.
func state(n *node) netlab.Snapshot {
	return n.Snapshot().Without("neigh ", "file /var/lib/cni/", "file /run/netns", "file /run/sluice/")
}

// What removes or overwrites plugins is put right within 5 seconds. Files of other suites stay.
func TestPrivilegedAgentReinstalls(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.addNode(self, 1, "10.244.1.0/24", "fd24:0:0:1::/64")
	e2etest.RunScript(t, n.World, "mkdir -p "+binDir+"; echo multus > "+binDir+"/multus; echo flannel > "+binDir+"/flannel; chmod 755 "+binDir+"/*")
	n.start()
	n.awaitReady()
	for name, want := range map[string]string{"multus": "multus\n", "flannel": "flannel\n"} {
		if got := n.read(binDir + "/" + name); got != want {
			t.Errorf("%s of a third party is %q", name, got)
		}
	}
	for what, script := range map[string]string{
		"an installer that copies in place": "cp -f /bin/true ptp; cp -f /bin/true bridge; cp -f /bin/true host-local",
		"a package that wipes the folder":   "rm -rf ../bin; mkdir ../bin",
		"a program overwritten in place":    "cp -f /bin/true sluice-cni.new; mv sluice-cni.new sluice-cni",
		"a mode that no one may start":      "chmod 600 portmap",
	} {
		e2etest.RunScript(t, n.World, "cd "+binDir+"; "+script)
		start := time.Now()
		limit := netlab.Patient(5 * time.Second)
		for !whole(n) && time.Since(start) < 2*limit {
			time.Sleep(20 * time.Millisecond)
		}
		took := time.Since(start)
		t.Logf("%s: put right after %v", what, took.Round(10*time.Millisecond))
		if took > limit {
			t.Errorf("%s: put right after %v", what, took)
		}
	}
	n.awaitReady()
	n.AddPod(n.runtime(), "p1")
}

// whole says that the plugins are there and Sluice's.
func whole(n *node) bool {
	ok := true
	_ = n.Node.Do(func() error {
		for _, name := range []string{"ptp", "bridge", "host-local", "portmap"} {
			info, err := os.Stat(binDir + "/" + name)
			b, _ := os.ReadFile(binDir + "/" + name)
			ok = ok && err == nil && info.Mode().Perm() == 0o755 && string(b) == "#!"+binDir+"/sluice-cni\n"
		}
		info, err := os.Stat(binDir + "/sluice-cni")
		ok = ok && err == nil && info.Size() > 1<<20
		return nil
	})
	return ok
}
