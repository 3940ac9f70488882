// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// suite is a set of plugins in one directory.
type suite struct {
	name, dir string
	ours      bool
}

// suites are ours and, where it can be built, upstream's: both have to give the same answers.
func suites(t *testing.T) []suite {
	t.Helper()
	out := []suite{{"sluice", e2etest.Programs.Dir, true}}
	dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall")
	if err == nil {
		return append(out, suite{"upstream", dir, false})
	}
	if _, noGo := exec.LookPath("go"); noGo == nil {
		t.Fatal(err)
	}
	t.Logf("no reference plugins here: %v", err)
	return out
}

// plainNetwork has no feature that needs programs: neither ipMasq nor firewall. The chain is flannel's, or nothing.
func plainNetwork(kind, name string, number int, chain ...string) e2etest.Network {
	n := e2etest.Network{
		Name: name, Main: kind, Bridge: name, NoMasq: true, Plugins: append([]string{}, chain...),
		Subnets: []string{fmt.Sprintf("10.%d.0.0/16", number), fmt.Sprintf("fd00:10:%d::/64", number)},
	}
	if kind == "bridge" {
		n.Extra = e2etest.Attributes{"hairpinMode": true}
	}
	return n
}

// gatewayIn is the gateway's address in the subnets with that number.
func gatewayIn(fam e2etest.Family, number int) netip.Addr {
	if fam.Suffix == "4" {
		return netip.MustParseAddr(fmt.Sprintf("10.%d.0.1", number))
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:%d::1", number))
}

// statefulFirewall lets only those through whose connection netfilter knows, as kube-proxy's rules and an administrator's do. A new
// connection may go to the published container port.
const statefulFirewall = `nft -f - <<E
table inet admin {
	chain forward {
		type filter hook forward priority 0; policy drop;
		meta l4proto ipv6-icmp accept
		ct state invalid drop
		ct state established,related accept
		meta l4proto { tcp, udp } th dport 80 ct state new accept
		meta l4proto sctp accept
	}
}
E`

// scene is a node with published pods, and with clients that no program of ours sees at their device.
type scene struct {
	*e2etest.World
	suite
	clients map[string]client
	order   []string
}

// client is somebody in the subnets with that number.
type client struct {
	e2etest.Place
	number int
	ip     map[string]netip.Addr // by the family's suffix
}

func (s *scene) add(name string, number int, p *e2etest.Pod) {
	s.clients[name] = client{p, number, map[string]netip.Addr{"4": p.IP4, "6": p.IP6}}
	s.order = append(s.order, name)
}

// wire gives a namespace a device of its own, as another plugin or upstream's did, and returns the client. host are commands for the
// node's end, whose name stands for DEV.
func (s *scene) wire(name string, number, last int, host ...string) *e2etest.Pod {
	s.T.Helper()
	p := s.NewPod(nil, name)
	dev := "x" + name
	p.IP4, p.IP6 = netip.MustParseAddr(fmt.Sprintf("10.%d.0.%d", number, last)), netip.MustParseAddr(fmt.Sprintf("fd00:10:%d::%x", number, last))
	lines := append([]string{
		"ip link add DEV address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns " + p.Path,
		"ip link set DEV up",
	}, host...)
	e2etest.RunScript(s.T, s.World, strings.ReplaceAll(strings.Join(lines, "\n"), "DEV", dev))
	s.add(name, number, p)
	return p
}

// routed is wire with a host route and a gateway behind the device itself: upstream's ptp and many other suites.
func (s *scene) routed(name string, number, last int) *e2etest.Pod {
	s.T.Helper()
	p := s.wire(name, number, last,
		"ip -6 addr add fe80::1/64 dev DEV nodad",
		fmt.Sprintf("ip route add 10.%d.0.%d dev DEV", number, last), fmt.Sprintf("ip route add fd00:10:%d::%x dev DEV", number, last))
	for _, line := range []string{
		"ip addr add " + p.IP4.String() + "/32 dev eth0", "ip addr add " + p.IP6.String() + "/128 dev eth0 nodad", "ip link set eth0 up",
		"ip neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0", "ip route add 169.254.1.1 dev eth0 scope link",
		"ip route add default via 169.254.1.1 dev eth0", "ip route add default via fe80::1 dev eth0",
	} {
		e2etest.MustRun(s.T, p, line)
	}
	return p
}

// bridged is wire with a port of a bridge: a virtual machine's tap, or a pod that upstream attached.
func (s *scene) bridged(name, bridge string, number, last int) *e2etest.Pod {
	s.T.Helper()
	p := s.wire(name, number, last, "ip link set DEV master "+bridge)
	for _, line := range []string{
		fmt.Sprintf("ip addr add %s/16 dev eth0", p.IP4), fmt.Sprintf("ip addr add %s/64 dev eth0 nodad", p.IP6), "ip link set eth0 up",
	} {
		e2etest.MustRun(s.T, p, line)
	}
	for _, fam := range e2etest.Families() {
		e2etest.MustRun(s.T, p, fmt.Sprintf("ip -%s route add default via %s dev eth0", fam.Suffix, gatewayIn(fam, number)))
	}
	return p
}

// foreign is routed with portmap in the list, but without ports of its own: the chain of calico and others.
func (s *scene) foreign(name string, number, last int) {
	s.T.Helper()
	p := s.routed(name, number, last)
	result, err := json.Marshal(e2etest.Attributes{
		"cniVersion": "1.0.0", "interfaces": []e2etest.Attributes{{"name": "x" + name}, {"name": "eth0", "sandbox": p.Path}},
		"ips": []e2etest.Attributes{{"address": p.IP4.String() + "/32", "interface": 1}, {"address": p.IP6.String() + "/128", "interface": 1}},
	})
	if err != nil {
		s.T.Fatal(err)
	}
	dir := s.T.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n[ $CNI_COMMAND != ADD ] || echo '%s'\n", result)
	if err := testbin.WriteScript(filepath.Join(dir, "main-"+name), script); err != nil {
		s.T.Fatal(err)
	}
	list := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net-%s","plugins":[{"type":"main-%s"},{"type":"portmap","capabilities":{"portMappings":true}}]}`, name, name)
	rt, err := s.Node.CNI(netlab.CNIOptions{Path: []string{dir, s.dir}, Conflist: []byte(list), Stderr: s.Stderr})
	if err != nil {
		s.T.Fatal(err)
	}
	p.Runtime, p.Attachment = rt, netlab.Attachment{ContainerID: name, NetNS: p.Path}
	p.MustAdd()
}

// published attaches a pod that answers at port 80.
func (s *scene) published(n e2etest.Network, name string, ports ...e2etest.PortMapping) *e2etest.Pod {
	s.T.Helper()
	p := s.AddPod(s.RuntimeFrom(n, s.dir), name, ports...)
	e2etest.Serve(s.T, p, name, ":80")
	return p
}

// ask returns who answered and whom the server saw, or the error.
func (s *scene) ask(c client, proto, to string) string {
	k, err := e2etest.Dial(c, proto, "", to)
	if err != nil {
		return "no answer: " + err.Error()
	}
	defer k.Close()
	if err := k.SendRounds(e2etest.LongTalk); err != nil {
		return "broke off: " + err.Error()
	}
	return k.Answer.Server + " saw " + k.Answer.Peer.Addr().String()
}

// A client on the node whose device has no program of ours reaches the hostPorts of the node, by every address of it, as with upstream:
// a pod of a network without features, a pod of another suite, a pod from before the swap, any port of a pod bridge. The pod that
// answers sees its gateway if the client is in its own subnet, else the client. A firewall with state passes both directions.
func TestPrivilegedClientsWithoutPrograms(t *testing.T) {
	t.Parallel()
	for _, x := range suites(t) {
		for _, nf := range []string{"1", "0"} { // br_netfilter: on each Kubernetes node
			t.Run(x.name+"/br_netfilter="+nf, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				s := &scene{World: w, suite: x, clients: map[string]client{}}
				e2etest.RunScript(t, w, fmt.Sprintf("for k in iptables ip6tables; do f=/proc/sys/net/bridge/bridge-nf-call-$k; [ ! -e $f ] || echo %s >$f; done", nf))
				e2etest.RunScript(t, w, statefulFirewall)
				flannel, other := plainNetwork("bridge", "cni0", 1, "portmap"), plainNetwork("bridge", "cni2", 2, "portmap")
				ptp, bare := plainNetwork("ptp", "ptp3", 3, "portmap"), plainNetwork("ptp", "ptp4", 4)
				late := plainNetwork("bridge", "cni5", 5)

				// Before the first published pod, and so before the first program.
				s.add("early", 1, s.AddPod(s.RuntimeFrom(flannel, x.dir), "early"))
				s.add("earlyptp", 4, s.AddPod(s.RuntimeFrom(bare, x.dir), "earlyptp"))
				s.routed("old", 8, 9)
				ports := []e2etest.PortMapping{e2etest.TCP(8081, 80), e2etest.UDP(8081, 80)}
				for _, fam := range e2etest.Families() {
					a := fam.Node(w.Client())
					ports = append(ports, e2etest.TCP(8090, 80).OnAddress(a), e2etest.UDP(8090, 80).OnAddress(a))
				}
				s.published(flannel, "web", ports...)
				s.published(other, "far", e2etest.TCP(8082, 80), e2etest.UDP(8082, 80))
				s.published(ptp, "link", e2etest.TCP(8083, 80), e2etest.UDP(8083, 80))
				// After the last one.
				s.add("sibling", 1, s.AddPod(s.RuntimeFrom(flannel, x.dir), "sibling"))
				s.add("stranger", 2, s.AddPod(s.RuntimeFrom(other, x.dir), "stranger"))
				s.add("ptp", 3, s.AddPod(s.RuntimeFrom(ptp, x.dir), "ptp"))
				s.add("bareptp", 4, s.AddPod(s.RuntimeFrom(bare, x.dir), "bareptp"))
				s.add("newbridge", 5, s.AddPod(s.RuntimeFrom(late, x.dir), "newbridge"))
				s.bridged("tap", "cni0", 1, 200)
				s.foreign("foreign", 9, 9)
				s.askAll()
				// What nobody has told the datapath of. The new bridge is an uplink to it from the next look on.
				s.order = []string{"newbridge"}
				s.routed("older", 8, 10)
				if x.ours {
					e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
				}

				s.askAll()
			})
		}
	}
}

// askAll lets every client ask for every hostPort, by every address of the node that it is for.
func (s *scene) askAll() {
	s.T.Helper()
	targets := []struct {
		name   string
		port   uint16
		number int
		byNode bool // by the node's address only
	}{{"web", 8081, 1, false}, {"web", 8090, 1, true}, {"far", 8082, 2, false}, {"link", 8083, 3, false}}
	for _, fam := range e2etest.Families() {
		for _, proto := range []string{"tcp", "udp"} {
			for _, name := range s.order {
				c := s.clients[name]
				for _, to := range targets {
					addrs := []netip.Addr{fam.Node(s.Client()), gatewayIn(fam, 1), gatewayIn(fam, 2)}
					if to.byNode {
						addrs = addrs[:1]
					}
					seen := c.ip[fam.Suffix]
					if c.number == to.number {
						seen = gatewayIn(fam, to.number)
					}
					want := to.name + " saw " + seen.String()
					for _, a := range addrs {
						if got := s.ask(c, proto+fam.Suffix, e2etest.At(a, to.port)); got != want {
							s.T.Errorf("%s, %s, from %s to %s: %s; want %s", fam.Name, proto, name, e2etest.At(a, to.port), got, want)
						}
					}
				}
			}
		}
	}
}
