// SPDX-License-Identifier: Apache-2.0

package parity

// differences are those that the suite lets pass, in the order of the document.
// What is not listed here is a defect; so is what says it is one.
var differences = []difference{
	{rows: "host*: *address, from the node, *", columns: "ebpf-*", reason: direct},
	{rows: "hostPorts: from the node, by its address, *", columns: "ebpf-*", ours: "web saw gateway", reason: direct},
	{rows: "firewall: ingressPolicy *: from the node by a hostPort, *", columns: "ebpf-*", ours: "a saw gateway", reason: direct},
	{rows: "hostPorts: from the node, by its loopback address, IPv6", columns: "ebpf-*", ours: "web saw gateway",
		reason: "`::1` works with eBPF. Netfilter cannot do it: IPv6 has no `route_localnet`."},
	{rows: "portmap: snat false: from the node, by 127.0.0.1, IPv4", columns: "ebpf-*", ours: "web saw gateway",
		reason: "With eBPF the node's own processes need no SNAT. So they reach 127.0.0.1 also with `snat` off."},
	{rows: "hostPorts for clients without features, a network with ingressPolicy isolated: the pod's own address, in its subnet, *", columns: "ebpf-*", ours: "web saw neighbour",
		reason: "With eBPF `isolated` is between pods that Sluice has programs for. A neighbour without is refused hostPorts only."},
	{rows: "pod lifecycle: a hostPort that a second pod asks for, *", ours: "young saw client",
		reason: "The last ADD of a port wins, as upstream documents. Upstream's rules let the first win."},
	{rows: "pod lifecycle: left by DEL without *", ours: "DEL ok, nothing left",
		reason: "DEL works from the attachment record. Upstream leaves rules if it does not get the ports, the result or the namespace."},
	{rows: "configurations: firewall backend that does not exist", ours: "ADD error 7",
		reason: "Upstream treats an unknown word as `auto`."},
	{rows: "configurations: externalSetMarkChain that does not exist", columns: "ebpf-*", ours: "ADD ok",
		reason: "With eBPF nothing is marked, so the chain is not needed."},
	{rows: "configurations: a rate without burst", ours: "ADD ok",
		reason: "The burst is derived from the rate, because some runtimes send only a rate."},
	{rows: "configurations: one port twice in a request", ours: "ADD error 7",
		reason: "Two mappings of one address, port and protocol are a mistake in the request. Upstream lets the first win."},
	{rows: "configurations: bandwidth backend that does not exist", ours: "ADD error 7", reason: subnets},
	{rows: "configurations: unshapedSubnets *", ours: "ADD error 7", reason: subnets},
	{rows: "configurations: * auto", ours: "ADD ok", reason: words},
	{rows: "configurations: * ebpf", ours: "ADD ok", reason: words},
	{rows: "configurations: *", ours: "ADD error 7", reason: "Upstream's errors all have code 999. 7 is a configuration that cannot be used."},
	{rows: "configurations: firewall backend firewalld that does not run", ours: "ADD error 105", reason: "Upstream's errors all have code 999. 105 is a backend that cannot run."},
	{rows: "a value that another source replaces: *", ours: "ADD error 7", reason: "Upstream's errors all have code 999. 7 is a configuration that cannot be used."},
	{rows: "a value that another source replaces: CNI_ARGS *", ours: "ADD error 4", reason: "Upstream's errors all have code 999. 4 is an environment that cannot be used."},
	{rows: "bandwidth: unshapedSubnets, * of them, *", ours: "not limited", reason: subnets},
	{rows: "bandwidth: shapedSubnets, * elsewhere, *", ours: "not limited", reason: subnets},
	{rows: "firewalld: CHECK after an address was taken out", ours: "CHECK error 102",
		reason: "Upstream asks firewalld and ignores the answer."},
	{rows: "firewalld: the zone after DEL without prevResult", ours: "DEL ok, 0 of 2",
		reason: "DEL works from the attachment record. Upstream knows the addresses only from the result."},
	{rows: "firewalld: a zone that does not exist", ours: "ADD error 100", reason: "Upstream's errors all have code 999. 100 is a change that was refused."},
	{rows: "bandwidth: CHECK after the limit was removed", ours: "CHECK error 102",
		reason: "CHECK sees a queueing discipline of another kind. Upstream accepts it."},
	{rows: "sbr: by the address's gateway, with an MTU, IPv4", ours: "[via 10.1.0.1 mtu 1400]", reason: routeMTU},
	{rows: "sbr: by the address's gateway, with an MTU, IPv6", ours: "[via fd00:10:1::1 mtu 1400]", reason: routeMTU},
	{rows: "sbr: by a default route whose gateway is outside of the subnet, IPv4", ours: "[via 169.254.1.1]", reason: moved},
	{rows: "sbr: by a default route whose gateway is outside of the subnet, IPv6", ours: "[via fe80::1]", reason: moved},
	{rows: "sbr: by a gateway behind a host route, IPv4", ours: "[via 169.254.1.1]", reason: moved},
	{rows: "sbr: by a gateway behind a host route, IPv6", ours: "[via fd77::1]", reason: moved},
}

const (
	subnets  = "Upstream had `unshapedSubnets` and `shapedSubnets` in v1.5 and ignores them now. It has no key `backend`."
	words    = "Upstream does not know the words `auto` and `ebpf`."
	direct   = "Socket LB leads the node's own socket to the pod when it connects. So the kernel picks the source by the route to the pod, as for every connection of the node to a pod."
	routeMTU = "The `mtu` of a route takes effect, in the table of sbr too. Upstream's interface plugins carry it in the result only."
	moved    = "A route whose gateway is outside of every subnet enters the tables of all addresses of its family. Upstream takes it out of the main table, and puts it into none."
)
