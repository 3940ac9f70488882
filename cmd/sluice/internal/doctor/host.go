// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// backedBy counts the attachments with something that a backend does.
func backedBy(records []*attachments.Record, backend string) int {
	n := 0
	for _, r := range records {
		if slices.Contains(backends(r), backend) {
			n++
		}
	}
	return n
}

// backends are those that a record names.
func backends(r *attachments.Record) []string {
	var s struct {
		Backend, Masquerade string
		Ports               []struct{ Backend string }
	}
	var out []string
	for plugin := range r.Plugins {
		s.Backend, s.Masquerade, s.Ports = "", "", nil
		if _, err := r.Section(plugin, &s); err != nil {
			continue // what cannot be read names nothing
		}
		if plugin == "firewall" {
			out = append(out, s.Backend)
		}
		out = append(out, s.Masquerade)
		for _, p := range s.Ports {
			out = append(out, p.Backend)
		}
	}
	return out
}

// checkTables says which netfilter tables were chosen and warns where rules are
// in tables of two kinds that do not know of each other.
func checkTables(f *Facts) []Finding {
	var out []Finding
	for _, asked := range []string{"auto", "iptables"} {
		if c, ok := f.Choices[asked]; ok {
			out = append(out, Finding{"netfilter", Info, fmt.Sprintf("netfilter is used by %s (asked for: %s): %s", c.Name, asked, c.Reason), ""})
		}
	}
	if f.Usage.NFT > 0 && f.Usage.Legacy > 0 {
		out = append(out, Finding{"netfilter", Warning,
			fmt.Sprintf("%s of iptables-nft and %s of iptables-legacy: packets meet both, and neither tool shows the other's", count(f.Usage.NFT, "rule"), count(f.Usage.Legacy, "rule")),
			"move everything to one variant (update-alternatives --config iptables) and remove the other's rules"})
	}
	return out
}

// checkForward looks for FORWARD policies that drop what pods were promised. The
// iptables backend accepts in FORWARD itself, and firewalld has chains of its own.
func checkForward(f *Facts) []Finding {
	backend := f.Config.Firewall
	if backend == "" {
		backend = f.Config.Backend
	}
	mark := f.Config.AdmitMark
	if mark == 0 || backend == nodeconf.BackendIPTables || backend == nodeconf.BackendFirewalld {
		return nil
	}
	var out []Finding
	for _, c := range f.Forwards {
		c.Answers = c.Answers || backend == nodeconf.BackendNFTables // its own table marks them, behind the translation
		switch {
		case c.Accepts && c.Answers:
			out = append(out, Finding{"forward-policy", OK, fmt.Sprintf("%s drops what is forwarded, and accepts our mark", c), ""})
			continue
		case c.Accepts:
			out = append(out, Finding{"forward-policy", Info,
				fmt.Sprintf("%s accepts our mark, but not answers without it: those to pods that a third party masquerades (kube-proxy, ip-masq-agent)", c), c.Accept(mark)})
			continue
		}
		n := Finding{"forward-policy", Warning, fmt.Sprintf("%s drops what is forwarded and no rule accepts what the firewall plugin admits", c), c.Accept(mark)}
		if f.uses("admit") || backedBy(f.Records, netfilter.NameNFTables) > 0 {
			n.Level = Problem
		}
		out = append(out, n)
	}
	return out
}

// checkFirewalld looks for hostPorts that firewalld rejects because eBPF publishes them, as after firewalld was started later than the pods.
func checkFirewalld(f *Facts) []Finding {
	if !f.Firewalld {
		return nil
	}
	type port struct{ Backend nodeconf.Backend }
	n := 0
	for _, r := range f.Records {
		var s struct{ Ports []port }
		if _, err := r.Section("portmap", &s); err == nil && slices.Contains(s.Ports, port{nodeconf.BackendEBPF}) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []Finding{{"firewalld", Warning,
		fmt.Sprintf("firewalld runs and eBPF publishes the hostPorts of %s: firewalld rejects those that its zones do not open", count(n, "attachment")),
		"delete and add the pods: portmap then publishes by netfilter, unless a configuration names ebpf. Or let a policy of firewalld open the ports that the pods listen on"}}
}

// checkForwarding looks for families in which pods send or serve while the node
// forwards nothing.
func checkForwarding(f *Facts) []Finding {
	if f.Status == nil {
		return nil
	}
	var has [2]bool
	for _, e := range f.Status.Endpoints {
		for _, a := range e.Addrs {
			has[b2i(a.Addr().Is6())] = true
		}
	}
	var out []Finding
	for i, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if has[i] && f.Sysctls[key] == "0" {
			out = append(out, Finding{"forwarding", Problem, dotted(key) + " is 0: the node passes nothing to or from pods", "sysctl -w " + dotted(key) + "=1, and find out who turned it off"})
		}
	}
	for _, name := range f.routing() {
		key := "net/ipv4/conf/" + name + "/forwarding"
		if has[0] && f.Sysctls["net/ipv4/ip_forward"] == "1" && f.Sysctls[key] == "0" {
			out = append(out, Finding{"forwarding", Problem, fmt.Sprintf("%s does not forward IPv4, although the node does", name), "sysctl -w " + dotted(key) + "=1"})
		}
	}
	return out
}

// checkGateways looks for addresses of the node that pods send by and that are gone from the node.
func checkGateways(f *Facts) []Finding {
	if f.Status == nil {
		return nil
	}
	var out []Finding
	for _, gw := range f.Status.LostGateways {
		out = append(out, Finding{"gateway", Problem, fmt.Sprintf("%s, by which pods send, is on no device any more: nothing is routed to them or from them", gw),
			"add a pod of their network, or give the address back to their bridge (ip addr add), and find out who took it"})
	}
	return out
}

// routing are the devices by which the kernel takes in what it forwards to and from pods: uplinks, and what pods are routed
// from, which is the bridge and not its port.
func (f *Facts) routing() []string {
	var names []string
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, d := range f.Status.Devices {
		if d.Role == "uplink" {
			add(d.Name)
		}
	}
	for _, e := range f.Status.Endpoints {
		if e.Netns == "" { // inside a namespace nothing is forwarded
			add(f.Links[e.RouteIfindex])
		}
	}
	return names
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// dotted writes a key as sysctl(8) has it: a dot in a device's name is a slash.
func dotted(key string) string {
	parts := strings.Split(key, "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(p, ".", "/")
	}
	return strings.Join(parts, ".")
}

// checkReversePath warns of strict reverse path filters on a node with several
// uplinks: what comes in by another device than answers go out by is dropped.
func checkReversePath(f *Facts) []Finding {
	if f.Status == nil {
		return nil
	}
	var strict []string
	uplinks := 0
	for _, d := range f.Status.Devices {
		if d.Role != "uplink" {
			continue
		}
		uplinks++
		// The kernel takes the larger of the two (Documentation/networking/ip-sysctl).
		if max(f.number("net/ipv4/conf/all/rp_filter"), f.number("net/ipv4/conf/"+d.Name+"/rp_filter")) == 1 {
			strict = append(strict, d.Name)
		}
	}
	if uplinks < 2 || len(strict) == 0 {
		return nil
	}
	return []Finding{{"rp-filter", Warning, fmt.Sprintf("rp_filter is strict on %s, one of %d uplinks: a client whose packets come in by another uplink than the route to it is dropped", strings.Join(strict, ", "), uplinks),
		"sysctl -w net.ipv4.conf.all.rp_filter=2 (loose), and the same in /etc/sysctl.d"}}
}

// number is a sysctl's value, 0 when the node does not have it.
func (f *Facts) number(key string) int {
	n, _ := strconv.Atoi(f.Sysctls[key])
	return n
}

// checkBridgeFilter says what br_netfilter means here.
func checkBridgeFilter(f *Facts) []Finding {
	on4, on6 := f.number("net/bridge/bridge-nf-call-iptables") == 1, f.number("net/bridge/bridge-nf-call-ip6tables") == 1
	if !on4 && !on6 {
		return nil
	}
	return []Finding{{"br-netfilter", Info, "br_netfilter is on: packets between pods of one bridge meet the FORWARD rules too (kube-proxy needs that)", ""}}
}

// Shares of the connection table from which on it is said.
const (
	conntrackHigh = 0.8
	conntrackFull = 0.95
)

// checkConntrack looks at the kernel's connection table: the first packet of
// every connection goes through it.
func checkConntrack(f *Facts) []Finding {
	have, limit := f.number("net/netfilter/nf_conntrack_count"), f.number("net/netfilter/nf_conntrack_max")
	if limit == 0 || float64(have) < conntrackHigh*float64(limit) {
		return nil
	}
	n := Finding{"conntrack", Warning, fmt.Sprintf("the kernel's connection table has %d of %d entries: when it is full, new connections are dropped", have, limit),
		fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*limit)}
	if float64(have) >= conntrackFull*float64(limit) {
		n.Level = Problem
	}
	return []Finding{n}
}
