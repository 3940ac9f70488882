// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/maps/denylist"
)

// BenchmarkFastPath measures the two programs of the fast path on packets of a flow
// that has learned it, as they are shipped. The time is the kernel's own account of
// the program (BPF_STATS_RUN_TIME), least of many batches, without the system call.
func BenchmarkFastPath(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("a network namespace and BPF need root")
	}
	countRuns(b)
	fx := newFixture(b, nil)
	shipped := mustLoad(b, loadOptions{maps: fx.maps, sizes: fixtureSizes})
	for _, family := range families {
		m := mapping(family, tcp, podA)
		for _, x := range []struct {
			name string
			make func(w *walk) *journey
		}{
			{"hostPort", func(w *walk) *journey { return w.toHostPort(family, tcp, podA) }},
			{"masquerade", func(w *walk) *journey { return w.opens(family, tcp, podA, keptPort, keptPort) }},
		} {
			b.Run(fmt.Sprintf("%s%d/in", x.name, family), func(b *testing.B) {
				j := learned(fx, b, x.make, masquerading(podA), publishing(m))
				f := j.outside.rx("PA")
				f.srcMAC, f.dstMAC = upl0.router, upl0.mac
				fx.perPacket(b, shipped.uplinkIngress, f.bytes(b), j.index(upl0.name), redirect)
			})
			b.Run(fmt.Sprintf("%s%d/out", x.name, family), func(b *testing.B) {
				j := learned(fx, b, x.make, masquerading(podA), publishing(m))
				f := j.inside.tx("PA")
				f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
				fx.perPacket(b, shipped.podEgress, f.bytes(b), j.index(podA.name), redirect)
			})
		}
	}
}

// BenchmarkNodeOut measures what the uplink's program costs the node's own packets.
func BenchmarkNodeOut(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("a network namespace and BPF need root")
	}
	countRuns(b)
	fx := newFixture(b, nil)
	shipped := mustLoad(b, loadOptions{maps: fx.maps, sizes: fixtureSizes})
	for _, x := range []struct {
		name, kind string
		proto      int
	}{{"TCP opens", "S", tcp}, {"TCP", "PA", tcp}, {"datagram", "", udp}} {
		for _, family := range families {
			b.Run(fmt.Sprintf("%s%d", x.name, family), func(b *testing.B) {
				w := fx.walk(b, fx.modes[0], masquerading(podA))
				c := conn{proto: x.proto, remote: at(client(family), serverTCP)}
				f := c.as(at(upl0.addr(family), 40002)).tx(x.kind)
				f.srcMAC, f.dstMAC = upl0.mac, upl0.router
				fx.perPacket(b, shipped.uplinkEgress, f.bytes(b), w.index(upl0.name), pass)
			})
		}
	}
}

// BenchmarkMasqueradeOpens measures what the uplink's program costs the first packet of a masqueraded connection.
func BenchmarkMasqueradeOpens(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("a network namespace and BPF need root")
	}
	countRuns(b)
	fx := newFixture(b, nil)
	shipped := mustLoad(b, loadOptions{maps: fx.maps, sizes: fixtureSizes})
	for _, family := range families {
		b.Run(fmt.Sprintf("IPv%d", family), func(b *testing.B) {
			w := fx.walk(b, fx.modes[0], masquerading(podA))
			to := client(family)
			perRun(b, shipped.uplinkEgress, func() error {
				return fx.do(func() error {
					for range batch {
						to = to.Next()
						f := conn{proto: tcp, local: at(podA.addr(family), keptPort), remote: at(to, serverTCP)}.tx("S")
						f.srcMAC, f.dstMAC = upl0.mac, upl0.router
						ret, err := shipped.uplinkEgress.Run(&ebpf.RunOptions{Data: f.bytes(b), Context: &skbContext{Ifindex: uint32(w.index(upl0.name))}})
						if err != nil || int32(ret) != pass {
							return fmt.Errorf("verdict %d: %w", int32(ret), err)
						}
					}
					return nil
				})
			})
		})
	}
}

// countRuns makes the kernel note how long programs run.
func countRuns(b *testing.B) {
	b.Helper()
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stats.Close() })
}

// learned brings a flow onto the fast path, by the real clock.
func learned(fx *fixture, b *testing.B, open func(*walk) *journey, opts ...option) *journey {
	b.Helper()
	w := fx.walk(b, fx.modes[0], opts...)
	w.clock = 0
	j := open(w)
	if j.inside.local.Port() == podPort {
		j.establish()
	} else {
		j.answered()
	}
	return j
}

// batch is how many packets are measured at once.
const batch = 2000

// perPacket reports what one packet costs. A packet is changed by the program, so each run gets a fresh one.
func (fx *fixture) perPacket(b *testing.B, p *ebpf.Program, packet []byte, ifindex int, verdict int32) {
	b.Helper()
	perRun(b, p, func() error {
		return fx.do(func() error {
			for range batch {
				ret, err := p.Run(&ebpf.RunOptions{Data: packet, Context: &skbContext{Ifindex: uint32(ifindex)}})
				if err != nil || int32(ret) != verdict {
					return fmt.Errorf("verdict %d, want %d: %w", int32(ret), verdict, err)
				}
			}
			return nil
		})
	})
}

// perRun reports what one run of p costs: in the best of many batches.
func perRun(b *testing.B, p *ebpf.Program, runs func() error) {
	b.Helper()
	least := 1e9
	for b.Loop() {
		before, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		if err := runs(); err != nil {
			b.Fatal(err)
		}
		after, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		least = min(least, float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount))
	}
	b.ReportMetric(least, "ns/packet")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkDenied measures what a packet of a denied source costs, besides the driver's part.
func BenchmarkDenied(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("a network namespace and BPF need root")
	}
	countRuns(b)
	for _, family := range families {
		for verdict, denied := range map[uint32]netip.Addr{xdpDrop: client(family), xdpPass: client(family).Next()} {
			b.Run(fmt.Sprintf("IPv%d/verdict %d", family, verdict), func(b *testing.B) {
				o := mustLoad(b, loadOptions{})
				_, p := xdpProgram(b, o)
				if err := denylist.New(o.views["sl_denylist"]).Add(netip.PrefixFrom(denied, denied.BitLen())); err != nil {
					b.Fatal(err)
				}
				f := udpFrame(netip.AddrPortFrom(client(family), 9).String(), netip.AddrPortFrom(podA.addr(family), 9).String())
				run := ebpf.RunOptions{Data: f.bytes(b), Repeat: batch}
				perRun(b, p, func() error {
					got, err := p.Run(&run)
					if err != nil || got != verdict {
						return fmt.Errorf("verdict %d, want %d: %w", got, verdict, err)
					}
					return nil
				})
			})
		}
	}
}
