// SPDX-License-Identifier: Apache-2.0

package stateful

// difference is a deliberate one. Its fields but the last are patterns of path.Match, empty for any; upstream is no pattern.
type difference struct {
	ruleset, scenario, trial, what, upstream, ours string
	reason                                         string
}

// differences are those that the suite lets pass. What is not listed here is a defect.
var differences = []difference{
	{what: "entry after the end", upstream: "closed", ours: "none",
		reason: "A connection that has ended may be forgotten at once: it counts nowhere, and nothing of it comes any more."},

	{ruleset: "Docker, by the original port", reason: translated},
	{ruleset: "nft ct original port", reason: translated},
	{ruleset: "nft ct status dnat", reason: translated},
	{ruleset: "firewalld", scenario: "shut port", trial: "hostPort *", what: "opens", upstream: "opens", ours: "prohibited",
		reason: translated + " The ruleset has no daemon: where firewalld runs, portmap publishes by netfilter, and the ports are open " +
			"(TestPrivilegedFirewalldAdmitsHostPorts). An eBPF backend that is named stays, with this verdict."},
	{ruleset: "nft notrack of the hostPort", reason: "Netfilter translates only what it tracks, so upstream's hostPort is shut. Sluice's own translation needs no entry."},

	{ruleset: "conntrack -?, *", scenario: "conntrack -?, server first", trial: "* udp *", reason: ownNAT},
	{ruleset: "conntrack -D, open rules", scenario: "conntrack -?, server first", what: "first word", ours: "arrives", reason: ownNAT},
	{ruleset: "conntrack -D, open rules", scenario: "conntrack -?, server first", what: "answer", ours: "arrives", reason: ownNAT},
	{what: "answer", upstream: "reset", ours: "lost", reason: ownNAT},

	{ruleset: "iptables connbytes", scenario: "* kB", upstream: "lost", ours: "arrives", reason: uncounted},
	{ruleset: "nft ct bytes", scenario: "* kB", upstream: "lost", ours: "arrives", reason: uncounted},
	{ruleset: "nft ct packets", scenario: "* kB", upstream: "lost", ours: "arrives", reason: uncounted},
	{ruleset: "nft ct avgpkt", scenario: "* kB", upstream: "lost", ours: "arrives", reason: uncounted},
	// On a slow machine upstream's client has given up by then.
	{ruleset: "iptables connbytes", scenario: "* kB", upstream: "reset", ours: "arrives", reason: uncounted},
	{ruleset: "nft ct bytes", scenario: "* kB", upstream: "reset", ours: "arrives", reason: uncounted},
	{ruleset: "nft ct packets", scenario: "* kB", upstream: "reset", ours: "arrives", reason: uncounted},
	{ruleset: "nft ct avgpkt", scenario: "* kB", upstream: "reset", ours: "arrives", reason: uncounted},
	{ruleset: "nft quota", scenario: "* kB", upstream: "lost", ours: "arrives", reason: uncounted},
}

const (
	translated = "Sluice translates before netfilter sees a packet. So its rules meet the pod's address and port, and no connection has the status dnat."
	ownNAT     = "Upstream's translation goes with the entry: the server's word then leaves with the pod's address, and the client resets it. Sluice's own translation stays, and the rules decide about the word."
	uncounted  = "Netfilter does not count the packets that the fast path carries, as with a flowtable without counters."
)
