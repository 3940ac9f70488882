// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/cmd/sluice/internal/pools"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeports"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fakeNode is a node with two pods, one of whose records is lost.
type fakeNode struct {
	dp         loadertest.Datapath // without State nothing is loaded
	records    []*attachments.Record
	choices    map[string]netfilter.Choice
	places     []loader.Place
	decision   *loader.Status // nil: no call tried
	facts      *doctor.Facts
	report     orphans.Report
	blind      error // of the report
	away       bool
	cleaned    []orphans.Item
	stays      string // what sweeping passes over
	cleanupErr error
	openErr    error
	loadErr    error
	readErr    error
	cleared    int
	verbs      []verbtimes.Histogram
	pools      []pools.Pool
	podNames   map[attachments.ID][2]string
	conflicts  []nodeports.Conflict
	named      int // times that a name was asked for
}

func (n *fakeNode) Datapath(context.Context) (loader.Interface, error) {
	n.dp.OpenErr, n.dp.Loaded = n.openErr, n.dp.State != nil
	if n.dp.Fail == nil {
		n.dp.Fail = map[string]error{}
	}
	for _, method := range []string{"Flows", "Policies", "Deny"} {
		n.dp.Fail[method] = n.readErr
	}
	return n.dp.Open(false)
}

func (n *fakeNode) Load(ctx context.Context) (loader.Interface, error) {
	if n.loadErr != nil {
		return nil, n.loadErr
	}
	if n.dp.State == nil {
		n.dp.State = &loader.Status{}
	}
	return n.Datapath(ctx)
}

func (n *fakeNode) Clear(context.Context) error { n.cleared++; return nil }

func (n *fakeNode) Decision(context.Context) (*loader.Status, error) {
	if n.decision == nil {
		return nil, loader.ErrNotLoaded
	}
	return n.decision, nil
}

func (n *fakeNode) Places() ([]loader.Place, error) {
	return append([]loader.Place{{Path: "/sys/fs/bpf", Pinned: n.dp.State != nil}}, n.places...), nil
}

func (n *fakeNode) Choices() (map[string]netfilter.Choice, error) { return n.choices, nil }

func (n *fakeNode) Records() ([]*attachments.Record, error) { return n.records, n.readErr }

func (n *fakeNode) Conflicts([]*attachments.Record) ([]nodeports.Conflict, error) {
	return n.conflicts, nil
}

func (n *fakeNode) PodName(id attachments.ID) (namespace, name string) {
	n.named++
	return n.podNames[id][0], n.podNames[id][1]
}

func (n *fakeNode) VerbTimes() ([]verbtimes.Histogram, error) { return n.verbs, nil }

func (n *fakeNode) Pools() ([]pools.Pool, error) { return n.pools, nil }

const (
	spoofed   = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_SPOOFED_IP)
	exhausted = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_SNAT_PORTS)
)

func fakeEvents() []loader.DropEvent {
	return []loader.DropEvent{
		{Time: born, Reason: spoofed, Owner: webRef.Owner(), Device: "veth1", Program: "sl_from_pod", Len: 74, Data: []byte{0xaa, 0xbb},
			Packet: drops.Packet{Src: port("10.9.9.9:4000"), Dst: port("198.51.100.7:443"), Proto: 6, Header: ipproto.Header{TCP: ipproto.SYN}}},
		{Time: born.Add(time.Second), Lost: 12},
		{Time: born.Add(2 * time.Second), Reason: exhausted, Owner: lostRef.Owner(), Device: "eth0", Program: "sl_to_uplink", Len: 98,
			Packet: drops.Packet{Src: port("[fd00:1::3]:0"), Dst: port("[2001:db8::7]:0"), Proto: 58, Header: ipproto.Header{ICMP: &ipproto.ICMP{Type: 128}}}},
		{Time: born.Add(3 * time.Second), Reason: exhausted, Device: "eth0", Program: "sl_to_uplink", Len: 60},
	}
}

var (
	webRef  = attachments.ID{Network: "dbnet", ContainerID: "3f1c9a7be0d24455aabbccdd", IfName: "eth0"}
	lostRef = attachments.ID{Network: "dbnet", ContainerID: "lost", IfName: "eth0"}
	born    = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
)

func newFakeNode() *fakeNode {
	return &fakeNode{
		records: []*attachments.Record{
			{Version: 1, ID: webRef, NetNS: "/run/netns/web", Created: born, Plugins: map[string]attachments.Section{
				"bridge": {State: attachments.StateDone}, "portmap": {State: attachments.StateDone},
			}},
			{Version: 1, ID: attachments.ID{Network: "other", ContainerID: "77", IfName: "net1"}, Created: born,
				Plugins: map[string]attachments.Section{"bridge": {State: attachments.StateIntent}}},
		},
		dp: loadertest.Datapath{
			State: fakeStatus(), Connections: fakeFlows(), Rules: fakePolicies(), Denied: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
			Dropped: fakeEvents(), Fail: map[string]error{},
			DropCounts: []loader.Drop{
				{Reason: spoofed, Device: "veth1", Owner: webRef.Owner(), Packets: 3},
				{Reason: exhausted, Device: "eth0", Owner: lostRef.Owner(), Packets: 5},
				{Reason: exhausted, Device: "eth0", Packets: 1},
			},
			Sums:   map[drops.Reason]drops.Sum{spoofed: {FromPods: 3}, exhausted: {ToPods: 1, FromPods: 5}},
			Counts: conntrack.Counts{ByPod: 7, ByClient: 4, Fin: 3, Rst: 1, Evicted: 2},
			Uplinks: []loader.DenyDevice{
				{Ifindex: 2, Name: "eth0", Mode: "native"},
				{Ifindex: 3, Name: "eth1", Mode: "none", Why: "it has an XDP program of somebody else (native, id 7), which stays"},
			},
			Ports: []hostport.Entry{
				{Mapping: hostport.Mapping{Key: hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: 6, Port: 8080}, PodIP: addr("10.1.0.2"), PodPort: 80, SNAT: true}, Owner: webRef.Owner(), Generation: 12},
				{Mapping: hostport.Mapping{Key: hostport.Key{HostIP: netip.IPv6Unspecified(), Proto: 6, Port: 8080}, PodIP: addr("fd00:1::2"), PodPort: 80, SNAT: true}, Owner: webRef.Owner(), Generation: 13},
				{Mapping: hostport.Mapping{Key: hostport.Key{HostIP: addr("192.0.2.1"), Proto: 17, Port: 53}, PodIP: addr("10.1.0.3"), PodPort: 5353}, Owner: lostRef.Owner(), Generation: 14},
			},
		},
	}
}

func fakePolicies() []loader.PolicyStatus {
	return []loader.PolicyStatus{
		{ID: 3, Mode: policy.ModeIsolated, Owners: []uint64{webRef.Owner(), lostRef.Owner()},
			Ingress: []loader.RuleStatus{
				{Number: 0, Allow: true, Network: netip.MustParsePrefix("192.0.2.0/24"), Protocol: "tcp", Ports: "80-81", Hits: 12},
				{Number: 1, Protocol: "any", Hits: 1_500_000}, {Number: -1, Protocol: "any"},
			},
			Egress: []loader.RuleStatus{{Number: -1, Allow: true, Protocol: "any", Hits: 7}}},
		{ID: 4, Mode: policy.ModeOpen, Owners: []uint64{webRef.Owner()},
			Ingress: []loader.RuleStatus{{Number: -1, Allow: true, Protocol: "any"}},
			Egress:  []loader.RuleStatus{{Number: 0, Network: netip.MustParsePrefix("2001:db8::/32"), Protocol: "udp", Ports: "53"}, {Number: -1, Allow: true, Protocol: "any"}}},
	}
}

func fakeStatus() *loader.Status {
	program := func(hook string, id uint32) loader.ProgramStatus {
		return loader.ProgramStatus{Name: map[string]string{"ingress": "sl_from_uplink", "egress": "sl_to_uplink"}[hook], Hook: hook, How: "tcx", ID: id, OK: true}
	}
	return &loader.Status{
		Backend: "ebpf", Reason: "every probe that matters says yes", Decided: born, Kernel: "6.18.44", Build: "4c01d3",
		PinPath: "/sys/fs/bpf/sluice/v2/n1", Attach: loader.AttachModes{Uplinks: "tcx", Pods: "clsact"},
		Config: loader.ConfigStatus{FastPath: "established", RelearnSeconds: 5, AntiSpoof: true, AdmitMark: "0x1000", SNATPorts: []string{"61000-65535", "1024-32767"}},
		Probes: []loader.Probe{
			{Name: "redirect_peer", Answer: loader.AnswerYes, Required: true},
			{Name: "fib_lookup_src", Answer: loader.AnswerNo, Reason: "kernel before 6.7", Consequence: "the uplink's first address is the source"},
		},
		Devices: []loader.DeviceStatus{
			{Ifindex: 2, Name: "eth0", Role: "uplink", Source4: addr("192.0.2.1"), Source6: addr("2001:db8::1"),
				Programs: []loader.ProgramStatus{program("ingress", 31), program("egress", 32)}},
			{Ifindex: 7, Name: "veth1", Role: "pod", Programs: []loader.ProgramStatus{program("ingress", 33), program("egress", 34)}},
			{Ifindex: 8, Name: "veth2", Role: "pod", Programs: []loader.ProgramStatus{program("ingress", 33), {Name: "sl_to_pod", Hook: "egress"}}},
		},
		Local: loader.LocalStatus{Cgroup: "/sys/fs/cgroup", Attached: true, Programs: []loader.ProgramStatus{
			{Name: "sl_connect4", Hook: "connect4", How: "cgroup", ID: 31, OK: true},
			{Name: "sl_connect6", Hook: "connect6", How: "cgroup", ID: 32, OK: true},
		}},
		Skipped:       []loader.SkippedDevice{{Ifindex: 3, Name: "wg0", Why: "no Ethernet header"}},
		HostAddresses: []loader.HostAddress{{Addr: addr("192.0.2.1"), Ifindex: 2}},
		Maps: []loader.MapStatus{
			{Name: "sl_endpoints", Type: "Hash", ID: 5, Entries: 4, InUse: 4, Max: 16384},
			{Name: "sl_ct", Type: "LRUHash", ID: 6, Entries: 131072, InUse: 65536, Max: 131072},
			{Name: "sl_drop_reasons", Type: "PerCPUArray", ID: 7, Entries: 8, InUse: 8, Max: 8},
		},
		Drops: []loader.DropCount{{Reason: "spoofed source address", Packets: 3}, {Reason: "no free source port"}},
		Endpoints: []loader.EndpointStatus{
			{Owner: webRef.Owner(), Features: []string{"masquerade", "publish"},
				Addrs:       []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("fd00:1::2/64")},
				HostIfindex: 7, HostIfName: "veth1", RouteIfindex: 4, MAC: "aa:bb:cc:dd:ee:01", GatewayMAC: "aa:bb:cc:dd:ee:ff", MTU: 1500,
				Stats: loader.EndpointCounter{RxPackets: 1000, RxBytes: 64 << 20, TxPackets: 3000, TxBytes: 1536, RxFast: 900, TxFast: 2100, Drops: 3}},
			{Owner: lostRef.Owner(), Features: []string{"publish"}, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.3/16")},
				HostIfindex: 8, MAC: "aa:bb:cc:dd:ee:02", MTU: 1500},
		},
	}
}

func fakeFlows() []loader.Flow {
	return []loader.Flow{
		{Proto: 17, Pod: port("10.1.0.3:5353"), Remote: port("198.51.100.9:40000"), Outside: port("192.0.2.1:53"), State: "unreplied", Slow: conntrack.SlowOpening,
			Kind: "hostport", Age: 90 * time.Second, Idle: 20 * time.Second, RxPackets: 2, RxBytes: 120, Owner: lostRef.Owner()},
		{Proto: 6, Pod: port("10.1.0.2:80"), Remote: port("198.51.100.7:51234"), Outside: port("192.0.2.1:8080"), State: "established",
			Kind: "hostport", Fast: true, Flags: []string{"dnat", "assured"}, Age: 3*time.Hour + 62*time.Second, Idle: 400 * time.Millisecond,
			RxPackets: 1200, RxBytes: 90_000, TxPackets: 15_000, TxBytes: 22 << 20, Owner: webRef.Owner()},
		{Proto: 6, Pod: port("[fd00:1::2]:41000"), Remote: port("[2001:db8:ffff::7]:443"), Outside: port("[2001:db8::1]:61001"), State: "closing",
			Kind: "masquerade", PodOpened: true, Fast: true, Age: 5 * time.Second, Idle: 700 * time.Millisecond, RxPackets: 9, RxBytes: 900, TxPackets: 8, TxBytes: 800, Owner: webRef.Owner()},
	}
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func port(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// runTool runs one command line on n and returns what it printed.
func runTool(t *testing.T, n *fakeNode, width int, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs, node: n, ops: n, width: width}
	status = a.run(t.Context(), args)
	if n.dp.Handles != 0 {
		t.Errorf("%d handles were not closed", n.dp.Handles)
	}
	return out.String(), errs.String(), status
}

// golden compares got with a file in testdata; -update writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
