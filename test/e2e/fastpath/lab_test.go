// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// networks are those of the pods: both main plugins, with and without masquerade.
var networks = []e2etest.Network{
	{Name: "net0", Bridge: "cni0", Subnets: []string{"10.1.0.0/16", "fd00:10:1::/64"}},
	{Name: "net1", Bridge: "cni1", Subnets: []string{"10.2.0.0/16", "fd00:10:2::/64"}, NoMasq: true},
	{Name: "net2", Bridge: "cni2", Subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}, NoMasq: true},
	{Name: "net3", Main: "ptp", Subnets: []string{"10.4.0.0/16", "fd00:10:4::/64"}, NoMasq: true},
	{Name: "net4", Main: "ptp", Subnets: []string{"10.5.0.0/16", "fd00:10:5::/64"}},
}

// The addresses behind the first client, which is a router: a backend on another node, and the address of a Service of that node, which
// the router translates as that node's proxy does.
var (
	remoteAddrs = [2]netip.Addr{netip.MustParseAddr("10.200.0.2"), netip.MustParseAddr("fd00:200::2")}
	farAddrs    = [2]netip.Addr{netip.MustParseAddr("10.97.0.1"), netip.MustParseAddr("fd00:97::1")}
)

const routerScript = `
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0
ip link add remote0 type veth peer name eth0 netns REMOTE
ip addr add 10.200.0.1/24 dev remote0
ip addr add fd00:200::1/64 dev remote0 nodad
ip link set remote0 up
nft -f - <<'END'
table inet far {
	chain pre {
		type nat hook prerouting priority -100;
		ip daddr 10.97.0.1 tcp dport 80 dnat ip to 10.200.0.2:8001
		ip daddr 10.97.0.1 udp dport 80 dnat ip to 10.200.0.2:8001
		ip6 daddr fd00:97::1 tcp dport 80 dnat ip6 to [fd00:200::2]:8001
		ip6 daddr fd00:97::1 udp dport 80 dnat ip6 to [fd00:200::2]:8001
	}
}
END`

const remoteScript = `
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
ip addr add 10.200.0.2/24 dev eth0
ip addr add fd00:200::2/64 dev eth0 nodad
ip link set eth0 up
ip route add default via 10.200.0.1
ip -6 route add default via fd00:200::1`

// nodeScript sets what would make the labs differ by time alone. Both are liberal about windows, as the loader has it for the fast path.
const nodeScript = `
sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0
sysctl -qw net.ipv4.conf.eth0.send_redirects=0 net.ipv4.conf.eth1.send_redirects=0 net.ipv6.conf.default.accept_dad=0
sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1`

// lab is one of the two worlds.
type lab struct {
	*e2etest.World
	*record
	name     string
	runtimes []*netlab.Runtime
	places   map[string]*place
	counted  e2etest.Counters // of pods that are gone
}

// place is somewhere to send from and to listen at.
type place struct {
	name    string
	ns      e2etest.Namespace
	addrs   [2]netip.Addr
	pod     *e2etest.Pod
	echo    [2]net.PacketConn
	closers []io.Closer
}

// serverPorts are where each place listens, for TCP and UDP.
var serverPorts = []uint16{8000, 8001}

func newLab(t *testing.T, name, conf string, bridgesCallNetfilter bool) *lab {
	t.Helper()
	o := e2etest.TwoUplinks()
	o.ForwardIPv4, o.ForwardIPv6 = true, true
	l := &lab{World: e2etest.NewWorld(t, o), record: newRecord(), name: name, places: map[string]*place{}}
	l.Configure(conf)
	e2etest.RunScript(t, l.World, nodeScript)
	if bridgesCallNetfilter {
		e2etest.RunScript(t, l.World, e2etest.BridgesCallNetfilter)
	} else {
		e2etest.RunScript(t, l.World, strings.ReplaceAll(e2etest.BridgesCallNetfilter, "=1", "=0"))
	}
	remote, err := netlab.NewNetns("remote")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range l.places {
			p.close()
		}
		_ = remote.Close()
	})
	script(t, l.Client(), strings.ReplaceAll(routerScript, "REMOTE", remote.ProcPath()))
	script(t, remote, remoteScript)
	for _, n := range networks {
		l.runtimes = append(l.runtimes, l.Runtime(n))
	}
	fams := e2etest.Families()
	l.addPlace(&place{name: "remote", ns: remote, addrs: remoteAddrs})
	l.addPlace(&place{name: "node", ns: l.Node, addrs: [2]netip.Addr{fams[0].Node(l.Client()), fams[1].Node(l.Client())}})
	for i, c := range l.Clients {
		l.addPlace(&place{name: fmt.Sprintf("client%d", i), ns: c, addrs: [2]netip.Addr{fams[0].Client(c), fams[1].Client(c)}})
	}
	return l
}

func script(t testing.TB, ns e2etest.Namespace, text string) {
	t.Helper()
	if err := ns.Do(func() error {
		_, err := netlab.Run("sh", "-ec", text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// addPod attaches a pod and has it listen.
func (l *lab) addPod(s *slot) {
	var ports []e2etest.PortMapping
	if s.hostPort != 0 {
		ports = []e2etest.PortMapping{e2etest.TCP(s.hostPort, int(serverPorts[0])), e2etest.UDP(s.hostPort, int(serverPorts[0]))}
	}
	p := l.AddPod(l.runtimes[s.network], fmt.Sprintf("%s-%d", s.name, s.generation), ports...)
	l.addPlace(&place{name: s.name, ns: p, addrs: [2]netip.Addr{p.IP4, p.IP6}, pod: p})
}

// removePod detaches a pod, and then takes its sockets away.
func (l *lab) removePod(s *slot) {
	p := l.places[s.name]
	c := l.Counters(l.T, p.pod)
	l.counted.RxPackets, l.counted.TxPackets = l.counted.RxPackets+c.RxPackets, l.counted.TxPackets+c.TxPackets
	l.counted.RxFast, l.counted.TxFast = l.counted.RxFast+c.RxFast, l.counted.TxFast+c.TxFast
	p.pod.MustDel()
	p.close()
	delete(l.places, s.name)
}

// counters are those of all pods, and of those before them.
func (l *lab) counters() e2etest.Counters {
	sum := l.counted
	var endpoints []e2etest.Counters
	l.SluiceJSON(l.T, &endpoints, "endpoints")
	for _, c := range endpoints {
		sum.RxPackets, sum.TxPackets = sum.RxPackets+c.RxPackets, sum.TxPackets+c.TxPackets
		sum.RxFast, sum.TxFast = sum.RxFast+c.RxFast, sum.TxFast+c.TxFast
	}
	return sum
}

func (p *place) close() {
	for _, c := range p.closers {
		_ = c.Close()
	}
}

// addPlace listens at a place.
func (l *lab) addPlace(p *place) {
	l.places[p.name] = p
	err := p.ns.Do(func() error {
		for i, fam := range e2etest.Families() {
			echo, err := net.ListenPacket(fam.Echo().Network, p.addrs[i].String())
			if err != nil {
				return err
			}
			p.echo[i], p.closers = echo, append(p.closers, echo)
			go l.readEcho(p, i, echo)
			for _, port := range serverPorts {
				at := e2etest.At(p.addrs[i], port)
				tcp, err := net.Listen("tcp"+fam.Suffix, at)
				if err != nil {
					return err
				}
				udp, err := net.ListenPacket("udp"+fam.Suffix, at)
				if err != nil {
					return err
				}
				p.closers = append(p.closers, tcp, udp)
				if err := askHeader(udp.(*net.UDPConn), i == 1, 0); err != nil {
					return err
				}
				where := fmt.Sprintf("%s port %d", p.name, port)
				go l.accept(tcp, p.name, where)
				go l.readServer(udp.(*net.UDPConn), p.name, where)
			}
		}
		return nil
	})
	if err != nil {
		l.T.Fatalf("%s in the lab %s: %v", p.name, l.name, err)
	}
}

// conntrack runs conntrack(8) on the node. It fails where there is nothing to delete, which is as good.
func (l *lab) conntrack(args string) {
	l.T.Helper()
	err := l.Node.Do(func() error { return exec.Command("conntrack", strings.Fields(args)...).Run() })
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		l.T.Error(err)
	}
}
