// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/pktgen"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A pod sends no more than its rate when it goes past the queue on its own device, with CAP_NET_RAW, and when it has removed queue
// and program, with CAP_NET_ADMIN in its namespace.
func TestPrivilegedEDTBypass(t *testing.T) {
	require.Qdisc(t, "fq")
	for _, tt := range []struct{ name, keys, damage string }{
		{name: "past the queue", keys: limits},
		{name: "no queue", keys: limits, damage: "tc -n a qdisc del dev eth0 root"},
		{name: "no program", keys: limits, damage: "tc -n a qdisc del dev eth0 clsact"},
		{name: "egress only", keys: `"egressRate":2000000,"egressBurst":1000000,`},
		{name: "shaped subnets", keys: `"shapedSubnets":["0.0.0.0/0","::/0"],` + limits},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.pod("a", 2)
			w.add("a", conf(2, `"backend":"edt",`+tt.keys))
			if tt.damage != "" {
				w.run(tt.damage)
			}
			w.wantHeld("10.1.2.2", netlab.IP4(w.lab.Client().Uplink.Client))
			w.wantHeld("fd00:2::2", netlab.IP6(w.lab.Client().Uplink.Client))
			if w.policed() == 0 {
				t.Error("the status knows of no dropped packets")
			}
			w.del("a")
			if left := w.run("tc filter show dev v2 ingress"); left != "" {
				t.Errorf("left at the host veth: %s", left)
			}
		})
	}
}

// The same holds for pods without a host veth, at the parent of their device, also toward another macvlan pod of it.
func TestPrivilegedEDTBypassInside(t *testing.T) {
	require.Qdisc(t, "fq")
	for _, tt := range []struct{ kind, link, damage string }{
		{kind: "macvlan", link: "macvlan mode bridge"},
		{kind: "macvlan", link: "macvlan mode private", damage: "tc -n a qdisc del dev eth0 root"},
		{kind: "ipvlan", link: "ipvlan mode l2", damage: "tc -n a qdisc del dev eth0 clsact"},
		{kind: "vlan", link: "vlan id 7"},
	} {
		t.Run(tt.link, func(t *testing.T) {
			require.Link(t, tt.kind)
			w := newWorld(t)
			w.run("ip link add m0 up type veth peer name m1", "ip link set m1 up")
			names := []string{"a", "b"}
			if tt.kind == "vlan" {
				names = names[:1]
			}
			for i, name := range names {
				w.pods[name] = w.lab.Node.PodT(t, name)
				w.run(fmt.Sprintf("ip link add link m0 name x%d type %s", i, tt.link), fmt.Sprintf("ip link set x%d netns %s name eth0", i, name),
					fmt.Sprintf("ip -n %s addr add 10.1.2.%d/24 dev eth0", name, i+2), "ip -n "+name+" link set eth0 up")
			}
			c := conf(2, `"backend":"edt",`+limits)
			w.add("a", c)
			must(t, w.check("a", c))
			if tt.damage != "" {
				w.run(tt.damage)
			}
			node := w.lab.Node.NS
			w.wantHeldAt("10.1.2.2", netip.MustParseAddr("10.1.2.9"), w.mac("m1", node), node, "m1")
			if tt.link == "macvlan mode bridge" {
				time.Sleep(2 * time.Second) // what is owed is paid
				w.wantHeldAt("10.1.2.2", netip.MustParseAddr("10.1.2.3"), w.mac("eth0", w.pods["b"].NS), w.pods["b"].NS, "eth0")
			}
			if w.policed() == 0 {
				t.Error("the status knows of no dropped packets")
			}
			w.del("a")
			w.del("a")
			for _, direction := range []string{"ingress", "egress"} {
				if left := w.run("tc filter show dev m0 " + direction); left != "" {
					t.Errorf("left at the parent: %s", left)
				}
			}
		})
	}
}

// A connection that the datapath leads past the stack is held like any other, and where programs hang by tcx, which run before every
// filter, it is not led there.
func TestPrivilegedEDTBypassFastPath(t *testing.T) {
	require.Qdisc(t, "fq")
	for _, how := range []nodeconf.Attach{nodeconf.AttachClsact, nodeconf.AttachTCX} {
		t.Run(string(how), func(t *testing.T) {
			if how == nodeconf.AttachTCX {
				require.TCX(t)
			}
			w := newWorld(t)
			w.config = nodeconf.Default()
			w.config.Attach = how
			w.pod("a", 2)
			c := conf(2, `"backend":"edt",`+limits)
			w.add("a", c)
			must(t, w.check("a", c))
			for _, end := range []struct {
				src string
				dst netip.Addr
			}{
				{"10.1.2.2", netlab.IP4(w.lab.Client().Uplink.Client)},
				{"fd00:2::2", netlab.IP6(w.lab.Client().Uplink.Client)},
			} {
				before := w.fast()
				w.converse(end.src, end.dst)
				w.wantHeld(end.src, end.dst)
				if fast := w.fast() - before; (fast > 100) != (how == nodeconf.AttachClsact) {
					t.Errorf("%s: %d packets took the fast path", end.src, fast)
				}
			}
		})
	}
}

// Streams in GSO packets that fill the queue, and small flows that overtake them, never meet the policer.
func TestPrivilegedEDTPolicerSparesHonest(t *testing.T) {
	require.Qdisc(t, "fq")
	for _, mbit := range []float64{1, 20} {
		t.Run(fmt.Sprintf("%.0f Mbit", mbit), func(t *testing.T) { sparesHonest(t, mbit) })
	}
}

func sparesHonest(t *testing.T, mbit float64) {
	const lasts = 3 * time.Second
	w := newWorld(t)
	w.pod("a", 2)
	w.add("a", conf(2, fmt.Sprintf(`"backend":"edt","egressRate":%.0f,`, mbit*1e6)))
	client := w.lab.Client()
	for _, dst := range []netip.Addr{netlab.IP4(client.Uplink.Client), netlab.IP6(client.Uplink.Client)} {
		sink, err := client.Listen("tcp", netip.AddrPortFrom(dst, 0).String())
		must(t, err)
		t.Cleanup(func() { sink.Close() })
		go func() {
			for {
				c, err := sink.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
			}
		}()
		dial := func(network, addr string, n int) (all []net.Conn) {
			for range n {
				c, err := w.pods["a"].DialContext(t.Context(), network, addr)
				must(t, err)
				all = append(all, c)
			}
			return all
		}
		// A handshake does not fight for the queue. The small flows have two fifths of the rate: more than they may overtake with.
		streams, small := dial("tcp", sink.Addr().String(), 8), dial("udp", netip.AddrPortFrom(dst, 9).String(), 20)
		pause := time.Duration(float64(100*time.Millisecond) / mbit)
		before, start, err := arrived(client.NS, "eth0")
		must(t, err)
		var senders sync.WaitGroup
		send := func(c net.Conn, size int, pause time.Duration) {
			must(t, c.SetDeadline(start.Add(lasts)))
			senders.Go(func() {
				defer c.Close()
				for buf := make([]byte, size); time.Since(start) < lasts; time.Sleep(pause) {
					_, _ = c.Write(buf)
				}
			})
		}
		for _, c := range streams {
			send(c, 256<<10, 0)
		}
		for _, c := range small {
			send(c, 200, pause)
		}
		senders.Wait()
		after, end, err := arrived(client.NS, "eth0")
		must(t, err)
		got := float64(after-before) / end.Sub(start).Seconds()
		t.Logf("%s: %.1f Mbit/s", dst, got*8/1e6)
		if got*8/1e6 < mbit*0.7 {
			t.Errorf("%s: %.1f Mbit/s do not fill the queue", dst, got*8/1e6)
		}
		time.Sleep(2 * time.Second) // the queue empties
		if n := w.policed(); n != 0 {
			t.Errorf("%s: the policer dropped %d packets", dst, n)
		}
	}
}

// converse makes a connection of the raw frames' ports known to the datapath, both ways.
func (w *world) converse(src string, dst netip.Addr) {
	w.t.Helper()
	sink, err := w.lab.Client().ListenPacket("udp", netip.AddrPortFrom(dst, 9).String())
	must(w.t, err)
	w.t.Cleanup(func() { sink.Close() })
	must(w.t, w.pods["a"].Do(func() error {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(src), Port: 1000}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 9)))
		if err != nil {
			return err
		}
		defer c.Close()
		buf := make([]byte, 1)
		for range 5 {
			if err := reach(c, sink); err != nil {
				return err
			}
			if _, err := sink.WriteTo(buf, &net.UDPAddr{IP: net.ParseIP(src), Port: 1000}); err != nil {
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(netlab.Patient(5 * time.Second)))
			if _, err := c.Read(buf); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (w *world) datapath(f func(*loader.Datapath) error) {
	w.t.Helper()
	w.do(func() error {
		dp, err := loader.OpenExisting(w.t.Context(), loader.Options{Config: w.config})
		if err != nil {
			return err
		}
		return errors.Join(f(dp), dp.Close())
	})
}

// policed returns how many packets the policers have dropped.
func (w *world) policed() (drops uint64) {
	w.t.Helper()
	w.datapath(func(dp *loader.Datapath) error {
		all, err := dp.RateLimits(w.t.Context())
		policers := 0
		for _, l := range all {
			if l.Police {
				drops += l.Drops
				policers++
			}
		}
		if policers != 1 {
			w.t.Errorf("%d policers: %+v", policers, all)
		}
		return err
	})
	return drops
}

// fast returns how many packets of pods took the fast path out.
func (w *world) fast() (n uint64) {
	w.t.Helper()
	w.datapath(func(dp *loader.Datapath) error {
		all, err := dp.Endpoints(w.t.Context())
		for _, ep := range all {
			n = max(n, ep.Stats.TxFast)
		}
		return err
	})
	return n
}

// policerSlack is how much of the rate a policer lets through at once beside the burst, with egressMbit.
const policerSlack = 700 * time.Millisecond

// wantHeld checks that pod a's raw frames leave the node at the rate, no more and no less, when it sends as many as it can.
func (w *world) wantHeld(src string, dst netip.Addr) {
	w.t.Helper()
	w.wantHeldAt(src, dst, w.mac("v2", w.lab.Node.NS), w.lab.Client().NS, "eth0")
}

// wantHeldAt is wantHeld for frames to a MAC, as they arrive at a device.
func (w *world) wantHeldAt(src string, dst netip.Addr, to net.HardwareAddr, at *netlab.NS, device string) {
	w.t.Helper()
	const lasts = 2 * time.Second
	frame := rawFrame(w.t, to, w.mac("eth0", w.pods["a"].NS), netip.MustParseAddr(src), dst)
	before, start, err := arrived(at, device)
	must(w.t, err)
	sent := 0
	must(w.t, w.pods["a"].Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		s, err := pktgen.NewSocket(dev.Index)
		if err != nil {
			return err
		}
		defer s.Close()
		for time.Since(start) < lasts {
			if err := s.Send(frame, 64); err != nil {
				return err
			}
			sent += 64 * len(frame)
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}))
	time.Sleep(50 * time.Millisecond)
	after, end, err := arrived(at, device)
	must(w.t, err)
	const rate = egressMbit * 1e6 / 8
	got, took := float64(after-before), end.Sub(start)
	most := rate*(took+burstTime+policerSlack).Seconds() + 10*frameLen
	w.t.Logf("%s: %d kB sent, %.0f kB arrived in %v, at most %.0f kB may", src, sent/1000, got/1000, took, most/1000)
	if float64(sent) < 2*most {
		w.t.Fatalf("%s: only %d bytes were sent", src, sent)
	}
	if got > most {
		w.t.Errorf("%s: %.2f Mbit/s arrived, the limit is %d", src, got*8/1e6/took.Seconds(), egressMbit)
	}
	if got < rate*took.Seconds()*0.8 {
		w.t.Errorf("%s: only %.2f Mbit/s arrived of %d", src, got*8/1e6/took.Seconds(), egressMbit)
	}
}

func (w *world) mac(device string, ns *netlab.NS) (mac net.HardwareAddr) {
	w.t.Helper()
	must(w.t, ns.Do(func() error {
		dev, err := net.InterfaceByName(device)
		if err == nil {
			mac = dev.HardwareAddr
		}
		return err
	}))
	return mac
}

// rawFrame is a UDP datagram to the discard port, in a frame of frameLen bytes.
func rawFrame(t testing.TB, to, from net.HardwareAddr, src, dst netip.Addr) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv4}
	u := &layers.UDP{SrcPort: 1000, DstPort: 9}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	payload := make([]byte, frameLen-14-20-8)
	if src.Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		payload = payload[20:]
	}
	must(t, u.SetNetworkLayerForChecksum(ip))
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, u, gopacket.Payload(payload)))
	return buf.Bytes()
}
