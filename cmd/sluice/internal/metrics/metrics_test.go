// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/pools"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
)

var update = flag.Bool("update", false, "write the golden file anew")

// busy is a node that has something of everything.
func busy() *Node {
	counts := make([]uint64, len(verbtimes.Bounds())+1)
	counts[2], counts[3], counts[len(counts)-1] = 5, 4, 1
	return &Node{
		Version: "v0.1.0", Backend: "ebpf", Reason: `the kernel has "all" that is needed`,
		Status: &loader.Status{
			Total:     loader.EndpointCounter{RxPackets: 10, RxBytes: 1000, TxPackets: 20, TxBytes: 2000, RxFast: 7, TxFast: 15},
			Endpoints: []loader.EndpointStatus{{Owner: 1}, {Owner: 2}},
			Maps: []loader.MapStatus{
				{Name: "sl_ct", Type: "LRUHash", Entries: 250, InUse: 5, Max: 1000}, {Name: "sl_ct_unassured", Type: "LRUHash", Entries: 10, InUse: 1, Max: 10},
				{Name: "sl_endpoints", Type: "Hash", Entries: 25, InUse: 25, Max: 100}, {Name: "sl_drop_reasons", Type: "PerCPUArray", Entries: 24, InUse: 24, Max: 24},
				{Name: "sl_sock_udp", Type: "LRUHash", Entries: 8, InUse: 8, Max: 8},
			},
			Runs: []loader.ProgramRun{{Program: "sl_from_pod", Runs: 12, Time: 1500 * time.Microsecond}, {Program: "sl_to_pod"}},
		},
		Netfilter:   map[string]string{"auto": "nftables"},
		Drops:       map[drops.Reason]drops.Sum{1: {ToPods: 1, FromPods: 3}},
		Counts:      &conntrack.Counts{ByClient: 8, ByPod: 9, Fin: 6, Rst: 2, Evicted: 3, Restored: 1},
		Connections: map[Connections]int{{"masquerade", "established"}: 4, {"plain", "new"}: 1, {"plain", "closed"}: 20, {"hostport", "expired"}: 225},
		HostPorts:   map[string]int{"tcp": 2, "udp": 0},
		PortUse:     []PortUse{{"192.0.2.1", "tcp", 9}},
		PortsTotal:  28232,
		Attachments: map[string]int{"net0": 2},
		Attached:    map[Attached]int{{"portmap", "ebpf"}: 2},
		Pods: []Pod{{
			Network: "net0", ContainerID: "3f1c", Interface: "eth0", Connections: 5,
			Traffic: loader.EndpointCounter{RxPackets: 1, RxBytes: 100, TxPackets: 2, TxBytes: 200},
		}},
		Pools: []pools.Pool{
			{Plugin: pools.HostLocal, Name: "net0", Family: "ipv4", Used: 240, Size: 253},
			{Plugin: pools.Cluster, Name: "10.20.0.0-16", Family: "ipv4", Used: 30, Claims: 32, Scarce: true},
		},
		Verbs:  []verbtimes.Histogram{{Plugin: "bridge", Verb: "ADD", Result: verbtimes.Success, Sum: 90 * time.Millisecond, Counts: counts}},
		Failed: map[string]bool{"datapath": false, "netfilter": true},
	}
}

func text(t *testing.T, n *Node) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, n); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWrite(t *testing.T) {
	t.Parallel()
	const golden = "testdata/busy.prom"
	got := text(t, busy())
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
	for _, name := range Names() {
		if !strings.Contains(got, "# TYPE "+name+" ") {
			t.Errorf("a node that has everything has no %s", name)
		}
	}
}

// The rules are those of "promtool check metrics", which has the same linter.
func TestLint(t *testing.T) {
	t.Parallel()
	problems, err := promlint.New(strings.NewReader(text(t, busy()))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A node where nothing is loaded says so, and tells nothing of a datapath that is not there.
func TestWriteNothing(t *testing.T) {
	t.Parallel()
	const want = `# HELP sluice_build_info Version of the sluice command. The value is 1.
# TYPE sluice_build_info gauge
sluice_build_info{version="dev"} 1
# HELP sluice_datapath_loaded Whether the eBPF datapath is loaded.
# TYPE sluice_datapath_loaded gauge
sluice_datapath_loaded 0
`
	if diff := cmp.Diff(want, text(t, &Node{Version: "dev"})); diff != "" {
		t.Error(diff)
	}
}

// The page of metrics has each of them.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/observability.md does not have %s", name)
		}
	}
}
