// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/pools"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
)

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(text, l+"\n") {
			t.Errorf("no line %q in\n%s", l, text)
		}
	}
}

func TestMetrics(t *testing.T) {
	n := newFakeNode()
	counts := make([]uint64, len(verbtimes.Bounds())+1)
	counts[0] = 2
	n.pools = []pools.Pool{{Plugin: pools.HostLocal, Name: "net0", Family: "ipv4", Used: 2, Size: 253}}
	n.verbs = []verbtimes.Histogram{{Plugin: "ptp", Verb: "DEL", Result: verbtimes.Success, Sum: time.Millisecond, Counts: counts}}
	out, errs, status := runTool(t, n, 0, "metrics")
	if status != 0 || errs != "" {
		t.Errorf("%d, %s", status, errs)
	}
	wantLines(t, out, `sluice_datapath_loaded 1`, `sluice_backend_info{backend="ebpf",reason="`+n.dp.State.Reason+`"} 1`, `sluice_look_failed{part="attachments"} 0`,
		`sluice_cni_verb_duration_seconds_count{plugin="ptp",result="success",verb="DEL"} 2`,
		`sluice_ipam_addresses_used{family="ipv4",plugin="host-local",pool="net0"} 2`, `sluice_ipam_addresses{family="ipv4",plugin="host-local",pool="net0"} 253`,
		`sluice_map_entries{map="sl_ct"} `+strconv.Itoa(len(n.dp.Connections)),
		`sluice_connections_made_total{opener="pod"} 7`, `sluice_connections_evicted_total 2`,
		`sluice_dropped_packets_total{direction="from_pods",reason="spoofed-ip"} 3`, `sluice_dropped_packets_total{direction="to_pods",reason="spoofed-ip"} 0`)
	n.dp.Fail["ConnectionCounts"] = loader.ErrNotLoaded
	if old, errs, status := runTool(t, n, 0, "metrics"); status != 0 || errs != "" || strings.Contains(old, "sluice_connections_made_total") {
		t.Errorf("programs of a build without counters: %d, %s%s", status, errs, old)
	}
	delete(n.dp.Fail, "ConnectionCounts")

	dir := t.TempDir()
	file := filepath.Join(dir, "sluice.prom")
	if out, errs, status := runTool(t, n, 0, "metrics", "--textfile", file); status != 0 || out+errs != "" {
		t.Errorf("%d, %s%s", status, out, errs)
	}
	b, err := os.ReadFile(file)
	if err != nil || string(b) != out {
		t.Errorf("%v: the file is not what is printed:\n%s", err, b)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v: the node exporter cannot read it", st, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	for _, bad := range []struct{ args, want string }{
		{"metrics --textfile " + dir + "/sluice.txt", "must end in .prom"},
		{"metrics --textfile /nowhere/sluice.prom", "/nowhere"},
		{"metrics -o json", "format of Prometheus only"},
	} {
		if out, errs, status := runTool(t, n, 0, strings.Fields(bad.args)...); status != 1 || out != "" || !strings.Contains(errs, bad.want) {
			t.Errorf("%s: %d, %s%s", bad.args, status, out, errs)
		}
	}
}

// Series of pods are there when they are asked for, and only then.
func TestMetricsOfPods(t *testing.T) {
	n := newFakeNode()
	ref, ep := n.records[0].ID, &n.dp.State.Endpoints[0]
	if ep.Owner != ref.Owner() {
		t.Fatal("the first endpoint is not that of the first record")
	}
	labels := `container="` + ref.ContainerID + `"`
	if out, _, _ := runTool(t, n, 0, "metrics"); strings.Contains(out, labels) {
		t.Errorf("a pod has series unasked:\n%s", out)
	}
	out, errs, status := runTool(t, n, 0, "metrics", "--pods")
	if status != 0 || errs != "" {
		t.Errorf("%d, %s", status, errs)
	}
	of := labels + `,direction="to_pods",interface="` + ref.IfName + `",network="` + ref.Network + `"} `
	wantLines(t, out, "sluice_pod_forwarded_packets_total{"+of+strconv.FormatUint(ep.Stats.RxPackets, 10))
	flows := 0
	for _, f := range n.dp.Connections {
		if f.Owner == ref.Owner() {
			flows++
		}
	}
	wantLines(t, out, "sluice_pod_connections{"+labels+`,interface="`+ref.IfName+`",network="`+ref.Network+`"} `+strconv.Itoa(flows))
}

// What cannot be read is said in the metrics and on stderr, and keeps nothing else from being told.
func TestMetricsInParts(t *testing.T) {
	n := newFakeNode()
	n.openErr = errors.New("EPERM")
	out, errs, status := runTool(t, n, 0, "metrics")
	if status != 1 || !strings.Contains(errs, "datapath: EPERM") {
		t.Errorf("%d, %s", status, errs)
	}
	wantLines(t, out, `sluice_look_failed{part="datapath"} 1`, `sluice_look_failed{part="verbs"} 0`, `sluice_datapath_loaded 0`, `sluice_attachments{network="`+n.records[0].Network+`"} 1`)

	n = newFakeNode()
	n.dp.State = nil
	if out, errs, status = runTool(t, n, 0, "metrics"); status != 0 || errs != "" {
		t.Errorf("%d, %s", status, errs)
	}
	wantLines(t, out, `sluice_datapath_loaded 0`, `sluice_look_failed{part="datapath"} 0`)
}

// A node with a pod: traffic, connections, the hostPort and the verbs are counted. When the pod has gone its traffic stays in the sums.
func TestPrivilegedMetrics(t *testing.T) {
	set := mustBuild(t)
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	rt := runtimeOf(t, l.Node, set.Dir, chain(t, "net0", "cni0", "10.1.0.0/16", "fd00:10:1::/64", ""))
	p, att := addPod(t, l.Node, rt, "a", 8080)
	stop, err := p.ServeHTTP(":80", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	if err := l.Node.Do(func() error {
		_, err := netlab.Run("ip", "-n", "a", "route", "add", "default", "via", "10.1.0.1")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), netlab.Patient(10*time.Second))
	defer cancel()
	conn, err := l.Client().DialContext(ctx, "tcp", "192.0.2.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })

	out, errs, status := real(t, l.Node, "metrics")
	if status != 0 || errs != "" {
		t.Fatalf("%d, %s", status, errs)
	}
	wantLines(t, out, `sluice_connections_made_total{opener="client"} 1`, `sluice_connections_ended_total{by="rst"} 0`,
		`sluice_ipam_addresses_used{family="ipv4",plugin="host-local",pool="net0"} 1`, `sluice_ipam_addresses_used{family="ipv6",plugin="host-local",pool="net0"} 1`)
	wantLines(t, out, `sluice_datapath_loaded 1`, `sluice_endpoints 1`, `sluice_attachments{network="net0"} 1`, `sluice_hostports{protocol="tcp"} 2`,
		`sluice_attachments_by_backend{backend="ebpf",feature="portmap"} 1`,
		`sluice_cni_verb_duration_seconds_count{plugin="bridge",result="success",verb="ADD"} 1`,
		`sluice_cni_verb_duration_seconds_count{plugin="portmap",result="success",verb="ADD"} 1`)
	opened := regexp.MustCompile(`(?m)^sluice_connections\{kind="hostport",state="\w+"\} 1$`)
	seen := regexp.MustCompile(`(?m)^sluice_forwarded_packets_total\{direction="to_pods"\} [1-9].*$`)
	packets := seen.FindString(out)
	if packets == "" || !opened.MatchString(out) {
		t.Errorf("no traffic in\n%s", out)
	}
	conn.Close()
	if err := rt.Del(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	out, _, _ = real(t, l.Node, "metrics")
	wantLines(t, out, `sluice_endpoints 0`, `sluice_cni_verb_duration_seconds_count{plugin="portmap",result="success",verb="DEL"} 1`)
	if seen.FindString(out) == "" {
		t.Errorf("%s has gone with the pod:\n%s", packets, out)
	}
}
