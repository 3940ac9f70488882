// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
)

// healthy is a node with one pod and two uplinks, with which nothing is wrong.
func healthy() *Facts {
	ref := attachments.ID{Network: "net0", ContainerID: "a", IfName: "eth0"}
	at := func(role, name string, index int) loader.DeviceStatus {
		return loader.DeviceStatus{Name: name, Ifindex: index, Role: role, Programs: []loader.ProgramStatus{
			{Name: "sl_in", Hook: "ingress", How: "tcx", ID: 5, OK: true}, {Name: "sl_out", Hook: "egress", How: "tcx", ID: 6, OK: true},
		}}
	}
	return &Facts{
		Config: nodeconf.Default(), Cgroup: "/sys/fs/cgroup", Links: map[int]string{2: "eth0", 3: "eth1", 7: "veth1", 8: "bwp0123456789ab", 9: "cni0"},
		Probes: []loader.Probe{
			{Name: "redirect_peer", Answer: loader.AnswerYes, Required: true}, {Name: "tcx links", Answer: loader.AnswerYes}, {Name: "sch_fq", Answer: loader.AnswerYes},
		},
		Status: &loader.Status{
			Backend: "ebpf", Build: "b1", Devices: []loader.DeviceStatus{at("uplink", "eth0", 2), at("uplink", "eth1", 3), at("pod", "veth1", 7)},
			Local: loader.LocalStatus{Attached: true},
			Maps:  []loader.MapStatus{{Name: "sl_endpoints", Type: "Hash", Entries: 1, Max: 100}, {Name: "sl_drop_reasons", Type: "PerCPUArray", Entries: 9, Max: 9}},
			Endpoints: []loader.EndpointStatus{{
				RouteIfindex: 9, HostIfindex: 7, Owner: ref.Owner(), Features: []string{"masquerade", "admit", "publish", "queue-tx"}, HostIfName: "veth1",
				Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("fd00::2/64")},
			}},
		},
		Hooks: []loader.HookPrograms{
			{Ifindex: 2, Hook: "ingress", Programs: []loader.HookedProgram{{Name: "sl_in", ID: 5, How: "tcx", Ours: true}}},
			// A limit on what the pod sends.
			{Ifindex: 7, Hook: "ingress", Programs: []loader.HookedProgram{{Name: "sl_in", ID: 5, How: "clsact", Ours: true}, {How: "clsact", Kind: "u32", To: 8}}},
		},
		Records: []*attachments.Record{{ID: ref, Plugins: map[string]attachments.Section{
			"portmap": {State: attachments.StateDone, Data: json.RawMessage(`{"ports":[{"backend":"ebpf"}]}`)},
		}}},
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/conf/all/rp_filter": "2",
			"net/ipv4/conf/eth0/forwarding": "1", "net/netfilter/nf_conntrack_count": "10", "net/netfilter/nf_conntrack_max": "1000",
		},
		Leftovers: orphans.Report{Known: "everything"},
	}
}

// conflictsOf is a hostPort that takes what the socket waits for.
func conflictsOf(inode uint32) []nodeports.Conflict {
	return []nodeports.Conflict{{
		Key:    hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: 6, Port: 22},
		Socket: netip.AddrPortFrom(netip.IPv6Unspecified(), 22), Inode: inode,
	}}
}

// unseenOf makes up something of the node that has changed since anybody looked.
func unseenOf(u loader.Unseen) func(*Facts) {
	return func(f *Facts) { f.Status.Unseen = []loader.Unseen{u} }
}

// A node with which nothing is wrong has no finding but that.
func TestHealthy(t *testing.T) {
	for _, f := range Examine(healthy()) {
		if f.Level != OK || f.Do != "" {
			t.Errorf("%+v", f)
		}
	}
	slow := healthy()
	slow.Config.FastPath, slow.Queues = nodeconf.FastPathOff, map[int]string{7: "tbf"}
	if worst := Worst(Examine(slow)); worst != OK {
		t.Errorf("a queue without a fast path: %s %+v", worst, Examine(slow))
	}
	empty := &Facts{Config: nodeconf.Default(), Cgroup: "/sys/fs/cgroup"}
	if worst := Worst(Examine(empty)); worst != OK {
		t.Errorf("a node before its first pod: %s %+v", worst, Examine(empty))
	}
}

// Each thing that can be wrong is found, as bad as it is, with what to do; and
// nothing else is then.
func TestChecks(t *testing.T) {
	noFQ := func(f *Facts) { f.Probes[2].Answer = loader.AnswerNo }
	noSocketNamespace := func(f *Facts) {
		f.Probes[1] = loader.Probe{Name: "namespace of a packet's socket", Answer: loader.AnswerNo}
	}
	other := func(h loader.HookPrograms) func(*Facts) {
		return func(f *Facts) { f.Hooks = []loader.HookPrograms{h} }
	}
	ours := loader.HookedProgram{Name: "sl_in", ID: 5, How: "tcx", Ours: true}
	theirs := loader.HookedProgram{Name: "cil", ID: 9, How: "tcx"}
	tests := []struct {
		name  string
		edit  func(*Facts)
		check string
		level Level
		text  string // part of it
		do    string // part of it
	}{
		{"not looked at", func(f *Facts) { f.Blind = []error{errors.New("the tables: EPERM")} }, "not-looked-at", Warning, "EPERM", "as root"},
		{"pins of another user", func(f *Facts) { f.Owners = errors.New("/sys/fs/bpf/sluice: belongs to user 1000") }, "owners", Problem, "user 1000", "as root"},
		{"pins elsewhere", func(f *Facts) {
			f.Places = []loader.Place{{Path: "/sys/fs/bpf"}, {Path: "/proc/7/root/sys/fs/bpf", PID: 7, Pinned: true}}
		}, "mounts", Warning, "process 7", "nsenter -m -t 7"},
		{"no netkit", func(f *Facts) {
			f.Probes[1] = loader.Probe{Name: "netkit", Answer: loader.AnswerNo}
		}, "kernel", Info, "netkit: no", ""},
		{"veths for netkit", func(f *Facts) {
			f.Records[0].Plugins["bridge"] = attachments.Section{State: attachments.StateDone, Data: json.RawMessage(`{"hostIfName":"veth1","noNetkit":"an old kernel"}`)}
		}, "netkit", Warning, "1 attachment asked for netkit devices and got veths: an old kernel", "add the pods again"},
		{"required probe", func(f *Facts) { f.Probes[0].Answer = loader.AnswerNo }, "kernel", Warning, "redirect_peer: no", "newer kernel"},
		{"required probe, eBPF demanded", func(f *Facts) { f.Probes[0].Answer = loader.AnswerNo; f.Config.Backend = nodeconf.BackendEBPF }, "kernel", Problem, "redirect_peer: no", "newer kernel"},
		{"required probe, eBPF not wanted", func(f *Facts) { f.Probes[0].Answer = loader.AnswerNo; f.Config.Backend = nodeconf.BackendNFTables }, "kernel", Info, "redirect_peer: no", ""},
		{"unclear probe", func(f *Facts) { f.Probes[1].Answer = loader.AnswerUnclear }, "kernel", Info, "tcx links: unclear", ""},
		{"no tcx", func(f *Facts) { f.Probes[1].Answer, f.Probes[1].Consequence = loader.AnswerNo, "clsact" }, "kernel", Info, "tcx links: no; clsact", ""},
		{"no namespace of sockets", noSocketNamespace, "kernel", Info, "socket: no", ""},
		{"no namespace of sockets, a macvlan pod with rules", func(f *Facts) {
			noSocketNamespace(f)
			f.Status.Endpoints = append(f.Status.Endpoints, loader.EndpointStatus{Owner: f.Status.Endpoints[0].Owner, Number: 1, Features: []string{"admit"}})
		}, "kernel", Warning, "socket: no", "newer kernel"},
		{"JIT off", func(f *Facts) { f.Probes[1] = loader.Probe{Name: "JIT", Answer: loader.AnswerNo} }, "kernel", Warning, "JIT", "bpf_jit_enable=1"},
		{"edt without fq", func(f *Facts) { noFQ(f); f.Config.Bandwidth = nodeconf.BandwidthEDT }, "bandwidth", Problem, "(\"bandwidthBackend\": \"edt\")", "set \"bandwidthBackend\" to \"auto\""},
		{"neither fq nor tbf", func(f *Facts) { noFQ(f); f.TBF = errors.New("no tbf") }, "bandwidth", Info, "no tbf", ""},
		{"neither, with a limit", func(f *Facts) {
			noFQ(f)
			f.TBF = errors.New("no tbf")
			f.Records[0].Plugins["bandwidth"] = attachments.Section{State: attachments.StateDone}
		}, "bandwidth", Problem, "no tbf", "modprobe"},
		{"tbf demanded", func(f *Facts) { f.Config.Bandwidth, f.TBF = nodeconf.BandwidthTBF, errors.New("no tbf") }, "bandwidth", Problem, "no tbf", "modprobe"},
		{"no cgroup v2", func(f *Facts) { f.Cgroup = "" }, "cgroup", Warning, "cannot be", "another kernel"},
		{"cgroup off", func(f *Facts) { f.Config.CgroupRoot = nodeconf.CgroupOff }, "cgroup", Info, "\"off\"", ""},
		{"cgroup programs missing", func(f *Facts) { f.Status.Local = loader.LocalStatus{Reason: "EINVAL"} }, "cgroup", Problem, "EINVAL", "again"},
		{"refused", func(f *Facts) {
			f.Status, f.Records = nil, nil
			f.Decision = &loader.Status{Backend: "none", Reason: "no JIT"}
		}, "datapath", Warning, "no JIT", "kernel"},
		{"unloaded with pods", func(f *Facts) { f.Status = nil }, "datapath", Problem, "1 attachment", "delete and add"},
		{"uplink without program", func(f *Facts) { f.Status.Devices[0].Programs[0] = loader.ProgramStatus{Name: "sl_in", Hook: "ingress"} }, "programs", Problem, "uplink eth0 has no program sl_in at its ingress", "sluice resync"},
		{"pod without program", func(f *Facts) { f.Status.Devices[2].Programs[1] = loader.ProgramStatus{Name: "sl_out", Hook: "egress"} }, "programs", Problem, "pod veth1 has no program sl_out at its egress", "delete and add"},
		{"older program", func(f *Facts) { f.Status.Devices[0].Programs[0].OK = false }, "programs", Warning, "an older program", "next ADD"},
		{"skipped uplink", func(f *Facts) { f.Status.Skipped = []loader.SkippedDevice{{Name: "wg0", Why: "no Ethernet header"}} }, "uplinks", Warning, "wg0", "another device"},
		{"missing uplink", func(f *Facts) {
			f.Status.Skipped = []loader.SkippedDevice{{Name: "eth9", Why: "configured, but does not exist"}}
		}, "uplinks", Warning, "eth9", "correct"},
		{"bridge without its address", func(f *Facts) { f.Status.LostGateways = []netip.Addr{netip.MustParseAddr("10.1.0.1")} }, "gateway", Problem, "10.1.0.1", "ip addr add"},
		{"unseen uplink", unseenOf(loader.Unseen{Ifindex: 5, Name: "eth5"}), "uplinks", Problem, "eth5 is an uplink that no verb has seen", "sluice resync"},
		{"unseen address", unseenOf(loader.Unseen{Ifindex: 2, Name: "eth0", Addr: netip.MustParseAddr("192.0.2.9")}), "uplinks", Problem, "192.0.2.9 of eth0 is an address", "sluice resync"},
		{"address that left", unseenOf(loader.Unseen{Ifindex: 2, Name: "eth0", Addr: netip.MustParseAddr("192.0.2.9"), Gone: true}), "uplinks", Problem, "192.0.2.9 has left eth0", "sluice resync"},
		{"unseen, no pods", func(f *Facts) {
			unseenOf(loader.Unseen{Ifindex: 5, Name: "eth5"})(f)
			f.Status.Endpoints, f.Records = nil, nil
		}, "uplinks", Info, "eth5", "sluice resync"},
		{"no uplink", func(f *Facts) { f.Status.Devices = f.Status.Devices[2:] }, "uplinks", Warning, "no device is an uplink", "uplinks"},
		{"full map", func(f *Facts) { f.Status.Maps[0].InUse = 95 }, "maps", Problem, "95 of 100", "raise \"endpoints\" in \"mapSizes\""},
		{"full map of a fixed size", func(f *Facts) { f.Status.Maps[0].Name, f.Status.Maps[0].InUse = "sl_nomasq_cidrs", 100 }, "maps", Problem, "100 of 100", "size is fixed"},
		{"full of uplinks", func(f *Facts) { f.Status.Maps[0].Name, f.Status.Maps[0].InUse = "sl_uplinks", 100 }, "maps", Problem, "100 of 100", "name the devices"},
		{"full of connections", func(f *Facts) {
			f.Status.Maps[0] = loader.MapStatus{Name: "sl_ct", Type: "LRUHash", Entries: 100, InUse: 95, Max: 100}
		}, "maps", Warning, "95 of 100 entries: idle connections are forgotten", `raise "conntrack" in "mapSizes"`},
		{"before ours", other(loader.HookPrograms{Ifindex: 2, Hook: "ingress", Programs: []loader.HookedProgram{theirs, ours}}), "other-programs", Warning, "eth0, ingress: program cil (#9) of somebody else by tcx runs before", "bpftool prog show id 9"},
		{"after ours", other(loader.HookPrograms{Ifindex: 2, Hook: "ingress", Programs: []loader.HookedProgram{ours, theirs}}), "other-programs", Info, "runs after", "fastPath"},
		{"foreign filter", other(loader.HookPrograms{Ifindex: 3, Hook: "egress", Programs: []loader.HookedProgram{{How: "clsact", Kind: "u32"}, ours}}), "other-programs", Warning, "eth1, egress: u32 filter", "tc filter show dev eth1 egress"},
		{"redirection", other(loader.HookPrograms{Ifindex: 3, Hook: "egress", Programs: []loader.HookedProgram{{How: "clsact", Kind: "u32", To: 2}, ours}}), "other-programs", Warning, "eth1, egress: u32 filter", "tc filter show dev eth1 egress"},
		{"foreign queue", func(f *Facts) { f.Queues = map[int]string{7: "tbf"} }, "queues", Problem, "veth1 has a queue (tbf) of a third party", "fastPath"},
		{"foreign IFB", func(f *Facts) { f.Status.Endpoints[0].Features = []string{"masquerade", "admit", "publish"} }, "queues", Problem, "to go to bwp0123456789ab", "swap bandwidth"},
		{"foreign XDP", other(loader.HookPrograms{Ifindex: 3, Hook: "xdp", Programs: []loader.HookedProgram{{Name: "x", ID: 4, How: "xdp"}}}), "other-programs", Info, "program x (#4)", "bpftool"},
		{"netfilter in use", func(f *Facts) { f.Choices = map[string]netfilter.Choice{"auto": {Name: "nftables", Reason: "why"}} }, "netfilter", Info, "nftables (asked for: auto): why", ""},
		{"both variants", func(f *Facts) { f.Usage = netfilter.Usage{NFT: 1, Legacy: 2} }, "netfilter", Warning, "1 rule of iptables-nft and 2 rules of iptables-legacy", "one variant"},
		{"FORWARD v4", forward(netfilter.ForwardChain{Tool: "iptables-legacy", V4: true, Chain: "FORWARD"}), "forward-policy", Problem, "FORWARD of iptables-legacy, IPv4", "iptables-legacy -I FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT"},
		{"FORWARD without answers", forward(netfilter.ForwardChain{Tool: "iptables-nft", V4: true, Chain: "FORWARD", Accepts: true}), "forward-policy", Info, "third party masquerades", "iptables-nft -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		{"FORWARD v6", forward(netfilter.ForwardChain{Tool: "iptables-nft", V6: true, Chain: "FORWARD"}), "forward-policy", Problem, "IPv6", "ip6tables-nft -I FORWARD"},
		{"FORWARD nft", forward(netfilter.ForwardChain{Tool: "nftables", V4: true, V6: true, Table: "inet fw", Chain: "fwd"}), "forward-policy", Problem, "inet fw", "nft insert rule inet fw fwd meta mark and 0x1000 == 0x1000 accept"},
		{"FORWARD, nobody admitted", func(f *Facts) {
			forward(netfilter.ForwardChain{Tool: "iptables-nft", V4: true, Chain: "FORWARD"})(f)
			f.Status.Endpoints[0].Features = []string{"publish", "queue-tx"}
		}, "forward-policy", Warning, "IPv4", "-I FORWARD"},
		{"hostPort of a service", func(f *Facts) {
			f.Conflicts, f.Holders = conflictsOf(7), map[uint32]string{7: "sshd"}
		}, "port-conflict", Warning, "hostPort 0.0.0.0:22/tcp takes what a socket of the node waits for at [::]:22 (sshd)", "another hostPort"},
		{"hostPort of the kernel", func(f *Facts) { f.Conflicts = conflictsOf(8) }, "port-conflict", Warning, "(the kernel,", "another hostPort"},
		{"firewalld", func(f *Facts) {
			f.Firewalld = true
			recorded("portmap", `{"ports":[{"podIP":"10.1.0.2","backend":"ebpf"}]}`)(f)
		}, "firewalld", Warning, "eBPF publishes the hostPorts of 1 attachment", "delete and add"},
		{"ip_forward", func(f *Facts) { f.Sysctls["net/ipv4/ip_forward"] = "0" }, "forwarding", Problem, "net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1"},
		{"ip6 forwarding", func(f *Facts) { f.Sysctls["net/ipv6/conf/all/forwarding"] = "0" }, "forwarding", Problem, "net.ipv6.conf.all.forwarding is 0", "sysctl -w net.ipv6"},
		{"bridge forwarding", func(f *Facts) { f.Sysctls["net/ipv4/conf/cni0/forwarding"] = "0" }, "forwarding", Problem, "cni0 does not forward", "sysctl -w net.ipv4.conf.cni0.forwarding=1"},
		{"device forwarding", func(f *Facts) { f.Sysctls["net/ipv4/conf/eth0/forwarding"] = "0" }, "forwarding", Problem, "eth0 does not forward", "sysctl -w net.ipv4.conf.eth0.forwarding=1"},
		{"strict rp_filter", func(f *Facts) {
			f.Sysctls["net/ipv4/conf/all/rp_filter"], f.Sysctls["net/ipv4/conf/eth1/rp_filter"] = "0", "1"
		}, "rp-filter", Warning, "strict on eth1, one of 2", "rp_filter=2"},
		{"br_netfilter", func(f *Facts) { f.Sysctls["net/bridge/bridge-nf-call-iptables"] = "1" }, "br-netfilter", Info, "br_netfilter is on", ""},
		{"flushed ports", recorded("portmap", `{"ports":[{"podIP":"10.1.0.2","backend":"nftables"},{"podIP":"10.1.0.2","backend":"ebpf"}]}`), "netfilter-rules", Problem, "hostPorts of net0/a/eth0 has no rules of nftables for 10.1.0.2", "delete and add"},
		{"flushed admission", recorded("firewall", `{"backend":"iptables-nft","addrs":["10.1.0.2","10.1.0.3"]}`), "netfilter-rules", Problem, "admission of net0/a/eth0 has no rules of iptables-nft for 10.1.0.3", "delete and add"},
		{"flushed masquerade", recorded("ptp", `{"masquerade":"nftables","addrs":["fd00::2/64"]}`), "netfilter-rules", Problem, "masquerade of net0/a/eth0 has no rules of nftables for fd00::2", "delete and add"},
		{"conntrack high", func(f *Facts) { f.Sysctls["net/netfilter/nf_conntrack_count"] = "850" }, "conntrack", Warning, "850 of 1000", "nf_conntrack_max=2000"},
		{"conntrack full", func(f *Facts) { f.Sysctls["net/netfilter/nf_conntrack_count"] = "990" }, "conntrack", Problem, "990 of 1000", "nf_conntrack_max"},
		{"killed ADD", func(f *Facts) { f.Records[0].Plugins["bridge"] = attachments.Section{State: attachments.StateIntent} }, "records", Info, "net0/a/eth0 by bridge", "delete"},
		{"record without endpoint", func(f *Facts) { f.Status.Endpoints[0].Owner = 1 }, "records", Problem, "net0/a/eth0 has a record", "delete and add"},
		{"device of a pod that is gone", func(f *Facts) {
			f.Status.Devices[2].Name = ""
			f.Status.Devices[2].Programs = []loader.ProgramStatus{{Name: "sl_out", Hook: "egress"}}
			f.Leftovers = orphans.Report{Known: "everything", Items: []orphans.Item{{Kind: orphans.Datapath, What: "1 devices", Why: "gone", Removable: true}}}
		}, "leftover", Warning, "1 devices: gone", "sluice cleanup"},
		{"leftover", left(orphans.Item{Kind: orphans.IFB, What: "device bwp", Why: "gone", Removable: true}), "leftover", Warning, "device bwp: gone", "sluice cleanup"},
		{"doubt", left(orphans.Item{Kind: orphans.IFB, What: "device bwp", Why: "who knows"}), "doubtful", Info, "who knows", "leaves it alone"},
		{"reservation", left(orphans.Item{Kind: orphans.Reservation, What: "10.1.0.9", Why: "nobody"}), "reservation", Info, "10.1.0.9: nobody", "crictl"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.edit(f)
			found := 0
			for _, got := range Examine(f) {
				switch {
				case got.Level == OK:
				case got.Check == tt.check && got.Level == tt.level && strings.Contains(got.Text, tt.text) && strings.Contains(got.Do, tt.do) && (tt.do != "" || got.Do == ""):
					found++
				case got.Check == "kernel" && tt.check == "bandwidth": // the probe says so too
				default:
					t.Errorf("also: %+v", got)
				}
			}
			if found != 1 {
				t.Errorf("found %d times in %+v", found, Examine(f))
			}
		})
	}
}

// recorded adds a section to the record, on a node where iptables-nft admits one of the addresses.
func recorded(plugin, data string) func(*Facts) {
	return func(f *Facts) {
		f.Records[0].Plugins[plugin] = attachments.Section{State: attachments.StateDone, Data: json.RawMessage(data)}
		f.RuleSets = []netfilter.RuleSet{
			{Backend: netfilter.NameIPTablesNFT, Kind: netfilter.KindAdmission, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}},
			{Backend: netfilter.NameIPTablesNFT, Kind: netfilter.KindPorts, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}},
		}
	}
}

func forward(c netfilter.ForwardChain) func(*Facts) {
	return func(f *Facts) { f.Forwards = []netfilter.ForwardChain{c} }
}

func left(i orphans.Item) func(*Facts) {
	return func(f *Facts) { f.Leftovers.Items = []orphans.Item{i} }
}

// A policy with a rule for our mark, one uplink with a strict filter, and a node
// without a mark have nothing to say.
func TestNoFalseAlarm(t *testing.T) {
	for name, edit := range map[string]func(*Facts){
		// A port of a bridge routes nothing.
		"port":     func(f *Facts) { f.Sysctls["net/ipv4/conf/veth1/forwarding"] = "0" },
		"accepted": forward(netfilter.ForwardChain{Tool: "iptables-nft", V4: true, Chain: "FORWARD", Accepts: true, Answers: true}),
		"no mark": func(f *Facts) {
			f.Config.AdmitMark = 0
			forward(netfilter.ForwardChain{Tool: "iptables-nft", V4: true})(f)
		},
		"one uplink": func(f *Facts) {
			f.Status.Devices = f.Status.Devices[1:]
			f.Sysctls["net/ipv4/conf/all/rp_filter"] = "1"
		},
		"IPv4 only": func(f *Facts) {
			f.Status.Endpoints[0].Addrs = f.Status.Endpoints[0].Addrs[:1]
			f.Sysctls["net/ipv6/conf/all/forwarding"] = "0"
		},
		"ports that a runtime keeps": func(f *Facts) {
			f.Conflicts, f.Holders = conflictsOf(7), map[uint32]string{7: "conmon"}
		},
		"firewalld with hostPorts of netfilter": func(f *Facts) {
			f.Firewalld = true
			recorded("portmap", `{"ports":[{"podIP":"10.1.0.2","backend":"iptables-nft"}]}`)(f)
		},
		"other variants": func(f *Facts) { f.Usage = netfilter.Usage{NFT: 5, Native: 7} },
	} {
		f := healthy()
		edit(f)
		if worst := Worst(Examine(f)); worst != OK {
			t.Errorf("%s: %+v", name, Examine(f))
		}
	}
}

// Every kind of finding has a heading in the documentation.
func TestDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []string{
		"not-looked-at", "owners", "mounts", "kernel", "bandwidth", "cgroup", "datapath", "programs", "uplinks", "maps", "other-programs", "queues", "netfilter", "forward-policy", "firewalld", "port-conflict",
		"forwarding", "gateway", "rp-filter", "br-netfilter", "conntrack", "records", "leftover", "doubtful", "reservation",
	} {
		if !strings.Contains(string(raw), "\n### "+check+"\n") {
			t.Errorf("docs/troubleshooting.md has no heading %q", check)
		}
	}
}

// Findings come in the same order each time.
func TestRecordsInOrder(t *testing.T) {
	f := &Facts{Config: nodeconf.Default(), Records: []*attachments.Record{{ID: attachments.ID{Network: "n", ContainerID: "a", IfName: "eth0"}, Plugins: map[string]attachments.Section{}}}}
	for _, name := range []string{"bandwidth", "bridge", "firewall", "portmap", "tuning"} {
		f.Records[0].Plugins[name] = attachments.Section{State: attachments.StateIntent}
	}
	first := checkRecords(f)
	for range 50 {
		if diff := cmp.Diff(first, checkRecords(f)); diff != "" {
			t.Fatal(diff)
		}
	}
}

// A map that evicts is full after a while, of connections that have ended and of what is not used any more.
func TestFullOfEndedConnections(t *testing.T) {
	f := &Facts{Status: &loader.Status{Maps: []loader.MapStatus{
		{Name: "sl_ct", Type: "LRUHash", Entries: 100, InUse: 89, Max: 100},
		{Name: "sl_ct_unassured", Type: "LRUHash", Entries: 100, InUse: 3, Max: 100},
		{Name: "sl_sock_udp", Type: "LRUHash", Entries: 100, InUse: 100, Max: 100},
		{Name: "sl_drop_reasons", Type: "PerCPUArray", Entries: 100, InUse: 100, Max: 100},
	}}}
	if found := checkMaps(f); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}
