// SPDX-License-Identifier: Apache-2.0

package e2e

// differences are those that the suite lets pass, in the order of the document.
// What is not listed here is a defect; so is what says it is one.
var differences = []difference{
	{rows: "host*: *address, from the node, *", columns: "ebpf-*", reason: direct},
	{rows: "hostPorts: from the node, by its address, *", columns: "ebpf-*", ours: "web saw gateway", reason: direct},
	{rows: "firewall: ingressPolicy *: from the node by a hostPort, *", columns: "ebpf-*", ours: "a saw gateway", reason: direct},
	{rows: "hostPorts: from the node, by its loopback address, IPv6", columns: "ebpf-*", ours: "web saw gateway",
		reason: "`::1` works with eBPF. Netfilter cannot do it: IPv6 has no `route_localnet`."},
	{rows: "portmap: snat false: from the node, by 127.0.0.1, IPv4", columns: "ebpf-*", ours: "web saw gateway",
		reason: "The node's own processes need no exchanged source with eBPF, so `snat` off does not lock them out of 127.0.0.1."},
	{rows: "lives of pods: a hostPort that a second pod asks for, *", ours: "young saw client",
		reason: "The last ADD of a port has it, as the reference documents; its rules let the first win."},
	{rows: "lives of pods: left by DEL without *", ours: "DEL ok, nothing left",
		reason: "DEL works from our record. The reference leaves rules where it is not told the ports, the result or the namespace."},
	{rows: "configurations: firewall backend that does not exist", ours: "ADD error 7",
		reason: "The reference takes any word for `auto`."},
	{rows: "configurations: externalSetMarkChain that does not exist", columns: "ebpf-*", ours: "ADD ok",
		reason: "With eBPF nothing is marked, so the chain is not needed."},
	{rows: "configurations: a rate without burst", ours: "ADD ok",
		reason: "The burst is derived from the rate: there are runtimes that send a rate alone."},
	{rows: "configurations: one port twice in a request", ours: "ADD error 7",
		reason: "Two mappings of one address, port and protocol are a mistake in the request; the reference lets the first win."},
	{rows: "configurations: bandwidth backend that does not exist", ours: "ADD error 7", reason: subnets},
	{rows: "configurations: unshapedSubnets *", ours: "ADD error 7", reason: subnets},
	{rows: "configurations: * auto", ours: "ADD ok", reason: words},
	{rows: "configurations: * ebpf", ours: "ADD ok", reason: words},
	{rows: "configurations: *", ours: "ADD error 7", reason: "The reference's errors all have code 999; 7 is a configuration that cannot be used."},
	{rows: "configurations: firewall backend firewalld that does not run", ours: "ADD error 105", reason: "As above; 105 is a back end that cannot run."},
	{rows: "bandwidth: unshapedSubnets, * of them, *", ours: "not limited", reason: subnets},
	{rows: "bandwidth: shapedSubnets, * elsewhere, *", ours: "not limited", reason: subnets},
	{rows: "firewalld: CHECK after an address was taken out", ours: "CHECK error 102",
		reason: "The reference asks firewalld and does not look at the answer."},
	{rows: "firewalld: the zone after DEL without prevResult", ours: "DEL ok, 0 of 2",
		reason: "DEL works from our record; the reference knows the addresses from the result alone."},
	{rows: "firewalld: a zone that does not exist", ours: "ADD error 100", reason: "The reference's errors all have code 999; 100 is a change that was refused."},
	{rows: "bandwidth: CHECK after the limit was removed", ours: "CHECK error 102",
		reason: "CHECK sees a queueing discipline of another kind; the reference passes it."},
	{rows: "firewall: FORWARD policy DROP: from the pod to the outside, IPv?", columns: "ebpf-*", ours: "no answer",
		reason: "With eBPF admission is the node's mark (`admitMark`), which one rule of the administrator accepts, however many pods there are; `sluice doctor` and the log have the command. The reference adds two rules for each address."},
	{rows: "firewall: FORWARD policy DROP: from the pod to the outside, *chain*, IPv?", columns: "ebpf-*", ours: "there is no such chain", reason: chain},
	{rows: "firewall: FORWARD policy DROP: from the pod to the outside, *Chain*, IPv?", columns: "ebpf-*", ours: "there is no such chain", reason: chain},
}

const (
	subnets = "`unshapedSubnets` and `shapedSubnets` were the reference's in v1.5, and `backend` is ours: the reference takes no notice of any."
	words   = "`auto` and `ebpf` are words of ours."
	direct  = "The socket itself is sent to the pod when it connects, so the kernel picks the source by the way to the pod, as for every connection of the node to a pod."
	chain   = "`iptablesAdminChainName` is a chain of iptables: eBPF neither makes nor calls it. Rules of the administrator's own FORWARD chain are honoured all the same."
)
