// SPDX-License-Identifier: Apache-2.0

package privileges

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// capabilities are those of the agent's container in the plain manifest, as setpriv(1) writes them, and what docs/agent.md adds on old
// kernels.
func capabilities(t *testing.T) []string {
	t.Helper()
	manifest, err := os.ReadFile("../../../deploy/kustomize/base/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^ +add:\n((?: +- [A-Z_]+\n)+)`).FindSubmatch(manifest)
	if m == nil {
		t.Fatal("deploy/kustomize/base/sluice.yaml names no capabilities")
	}
	caps := strings.Fields(strings.ToLower(strings.ReplaceAll(string(m[1]), "-", " ")))
	if !bpfsys.KernelAtLeast(5, 11) {
		caps = append(caps, "sys_resource") // maps are charged to RLIMIT_MEMLOCK
	}
	return caps
}

// networks are the shapes of network that the agent writes.
func networks() map[string]e2etest.Network {
	plugins := []string{"portmap", "bandwidth", "firewall"}
	return map[string]e2etest.Network{"ptp": {Main: "ptp", Plugins: plugins}, "bridge": {Plugins: plugins}}
}

// container runs a program on the node as the agent's container does: with these capabilities alone, no way to more, /proc/sys read-only,
// and its net keys where the agent has them. It returns what the program prints.
func container(w *e2etest.World, caps []string, script string) (out string, err error) {
	w.T.Helper()
	set := "-all"
	for _, c := range caps {
		set += ",+" + c
	}
	line := fmt.Sprintf("mount --make-rprivate /; mkdir -p %[1]s; mount --bind /proc/sys/net %[1]s; mount -o bind,ro /proc/sys /proc/sys; "+
		"export PATH=%[2]s:$PATH; exec setpriv --no-new-privs --inh-caps=-all --bounding-set=%[3]s sh -ec '%[4]s' 2>&1",
		sysctl.HostNet, e2etest.Programs.Dir, set, script)
	w.DoOnNode(func() error {
		out, err = netlab.Run("unshare", "--mount", "sh", "-ec", line)
		return nil
	})
	return out, err
}

// agentWork is what the agent runs on a node with a pod of the network: the datapath's resync, STATUS, the pod's DEL while its
// namespace is there, and what "remove" runs when no pod is left. It returns a line for each that fails, or that chose another backend for want of rights.
func agentWork(t *testing.T, net e2etest.Network, caps []string) (problems []string, w *e2etest.World) {
	t.Helper()
	w = e2etest.NewWorld(t)
	w.AddPod(w.Runtime(net), "a", e2etest.TCP(8080, 80))
	w.Configure(`{"nonMasqueradeCIDRs": ["10.99.0.0/16"]}`)
	var list struct {
		Name    string           `json:"name"`
		Plugins []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal(net.Conflist(t), &list); err != nil {
		t.Fatal(err)
	}
	try := func(what, script string) {
		if out, err := container(w, caps, script); err != nil || strings.Contains(out, "chose the netfilter tables") {
			problems = append(problems, fmt.Sprintf("%s: %v\n%s", what, err, out))
		}
	}
	try("resync", "sluice resync")
	dir := t.TempDir()
	slices.Reverse(list.Plugins)
	for _, verb := range []string{"STATUS", "DEL"} {
		for _, p := range list.Plugins {
			p["cniVersion"], p["name"] = "1.1.0", list.Name
			conf, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, fmt.Sprint(verb, p["type"]))
			if err := os.WriteFile(file, conf, 0o600); err != nil {
				t.Fatal(err)
			}
			try(fmt.Sprint(verb, " of ", p["type"]), fmt.Sprintf("CNI_COMMAND=%s CNI_CONTAINERID=a CNI_IFNAME=eth0 CNI_NETNS=/run/netns/a CNI_PATH=%s %s < %s",
				verb, e2etest.Programs.Dir, p["type"], file))
		}
	}
	try("unload", "sluice unload")
	return problems, w
}

// The capabilities of the agent's container are enough for all that the agent runs, and nothing of the pod is left.
func TestPrivilegedAgentCapabilities(t *testing.T) {
	for name, net := range networks() {
		t.Run(name, func(t *testing.T) {
			problems, w := agentWork(t, net, capabilities(t))
			for _, p := range problems {
				t.Error(p)
			}
			if out := e2etest.MustRun(t, w.Node, "ip -br link"); strings.Contains(out, "veth") {
				t.Errorf("the pod's device is left:\n%s", out)
			}
			if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" status"); !strings.Contains(out, "Nothing is loaded") {
				t.Errorf("the datapath is left:\n%s", out)
			}
			w.DoOnNode(func() error {
				records, err := filepath.Glob("/run/sluice/attachments/*.json")
				if len(records) != 0 {
					t.Errorf("records are left: %v", records)
				}
				return err
			})
		})
	}
}

// A load in the agent's container decides as one by root does, so pods lose nothing when the agent comes first. It may not make a network
// namespace to ask for two qdiscs in: bandwidth asks for sch_fq itself, and without clsact see docs/known-gaps.md.
func TestPrivilegedAgentLoads(t *testing.T) {
	type decision struct {
		Loaded          bool
		Backend, Reason string
		Uplinks         string `json:"attach_uplinks"`
		Pods            string `json:"attach_pods"`
		Local, Devices  any
		Probes          []map[string]any
	}
	load := func(t *testing.T, by func(w *e2etest.World)) (d decision) {
		t.Helper()
		w := e2etest.NewWorld(t)
		by(w)
		out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" status -o json")
		if err := json.Unmarshal([]byte(out), &d); err != nil {
			t.Fatal(err)
		}
		d.Probes = slices.DeleteFunc(d.Probes, func(p map[string]any) bool {
			return p["name"] == "clsact" || p["name"] == "sch_fq" || p["name"] == "host mount namespace" // the last is about the process
		})
		if !d.Loaded || d.Uplinks == "" || d.Probes == nil || d.Local == nil || d.Devices == nil {
			t.Errorf("not loaded, or not known how: %+v in %s", d, out)
		}
		return d
	}
	asRoot := load(t, func(w *e2etest.World) {
		e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync --load")
	})
	asAgent := load(t, func(w *e2etest.World) {
		if out, err := container(w, capabilities(t), "sluice resync --load"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	ids := cmpopts.IgnoreMapEntries(func(key string, _ any) bool { return key == "id" }) // of programs
	if diff := cmp.Diff(asRoot, asAgent, ids); diff != "" {
		t.Errorf("root decides otherwise than the agent (-root +agent):\n%s", diff)
	}
}

// What the agent has loaded is what the first pod needs: its ADD loads nothing again, and neither says anything.
func TestPrivilegedAgentPreload(t *testing.T) {
	w := e2etest.NewWorld(t)
	w.DoOnNode(func() error { return sysctl.Set("net/netfilter/nf_conntrack_tcp_be_liberal", "0") })
	if out, err := container(w, capabilities(t), "sluice resync --load"); err != nil || strings.Contains(strings.ToLower(out), "warn") {
		t.Errorf("load in the container: %v, %s", err, out)
	}
	status := func() (s struct{ Build string }) {
		w.SluiceJSON(t, &s, "status")
		return s
	}
	before := status()
	w.AddPod(w.Runtime(networks()["ptp"]), "a", e2etest.TCP(8080, 80))
	if after := status(); before.Build == "" || after != before {
		t.Errorf("the first ADD has loaded build %q, after %q of the agent", after.Build, before.Build)
	}
}

// Each of them is needed.
func TestPrivilegedAgentCapabilitiesMinimum(t *testing.T) {
	all := capabilities(t)
	for i, c := range all {
		t.Run("without "+c, func(t *testing.T) {
			problems, _ := agentWork(t, networks()["ptp"], slices.Delete(slices.Clone(all), i, i+1))
			if len(problems) == 0 {
				t.Errorf("the agent's work is done without %s as well", c)
			}
		})
	}
}

// The image has no nft. A DEL in the container, of an attachment whose record says nftables, fails and says so, and keeps record and
// rules. The next DEL of the runtime, which has nft, finds all it needs.
func TestPrivilegedAgentWithoutTools(t *testing.T) {
	w := e2etest.NewWorld(t)
	w.SetBackend(e2etest.NetfilterBackends()[0])
	rt := w.Runtime(e2etest.Network{Main: "ptp", Plugins: []string{"portmap"}})
	pod := w.AddPod(rt, "a", e2etest.TCP(8080, 80))
	conf := filepath.Join(t.TempDir(), "portmap")
	if err := os.WriteFile(conf, []byte(`{"cniVersion": "1.1.0", "name": "net0", "type": "portmap", "capabilities": {"portMappings": true}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	left := func() (rules string, records int) {
		w.DoOnNode(func() error {
			files, err := filepath.Glob("/run/sluice/attachments/*.json")
			records = len(files)
			return err
		})
		return e2etest.MustRun(t, w.Node, "nft list ruleset"), records
	}
	if rules, records := left(); !strings.Contains(rules, "8080") || records != 1 {
		t.Fatalf("after the ADD: %d records, %s", records, rules)
	}
	out, err := container(w, capabilities(t), fmt.Sprintf("PATH=%s CNI_COMMAND=DEL CNI_CONTAINERID=a CNI_IFNAME=eth0 CNI_NETNS=/run/netns/a CNI_PATH=%[1]s portmap < %s",
		e2etest.Programs.Dir, conf))
	if err == nil || !strings.Contains(out, "nft is not installed") {
		t.Errorf("DEL without nft: %v, %s", err, out)
	}
	if rules, records := left(); !strings.Contains(rules, "8080") || records != 1 {
		t.Errorf("after the DEL without nft: %d records, %s", records, rules)
	}
	pod.MustDel()
	if rules, records := left(); strings.Contains(rules, "8080") || records != 0 {
		t.Errorf("after the runtime's DEL: %d records, %s", records, rules)
	}
}

// What the pages say of SYS_ADMIN: a container without it enters no network namespace.
func TestPrivilegedAgentEntersNoNamespace(t *testing.T) {
	w := e2etest.NewWorld(t)
	w.Node.PodT(t, "a")
	if out, err := container(w, capabilities(t), "nsenter --net=/run/netns/a true"); err == nil {
		t.Errorf("it does: %s", out)
	}
	if out, err := container(w, append(capabilities(t), "sys_admin"), "nsenter --net=/run/netns/a true"); err != nil {
		t.Errorf("with SYS_ADMIN: %v\n%s", err, out)
	}
}
