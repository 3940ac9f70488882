// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// BenchmarkFastPath measures the two programs of the shortcut on packets of a flow
// that has learned it, as they are shipped. The time is the kernel's own account of
// the program (BPF_STATS_RUN_TIME), least of many batches, without the system call.
func BenchmarkFastPath(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("a network namespace and BPF need root")
	}
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
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
				fx.perPacket(b, shipped.uplinkIngress, f.bytes(b), j.index(upl0.name))
			})
			b.Run(fmt.Sprintf("%s%d/out", x.name, family), func(b *testing.B) {
				j := learned(fx, b, x.make, masquerading(podA), publishing(m))
				f := j.inside.tx("PA")
				f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
				fx.perPacket(b, shipped.podEgress, f.bytes(b), j.index(podA.name))
			})
		}
	}
}

// learned brings a flow onto the shortcut, by the real clock.
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
func (fx *fixture) perPacket(b *testing.B, p *ebpf.Program, packet []byte, ifindex int) {
	b.Helper()
	least := 1e9
	run := func() error {
		before, err := p.Stats()
		if err != nil {
			return err
		}
		for range batch {
			ret, err := p.Run(&ebpf.RunOptions{Data: packet, Context: &skbContext{Ifindex: uint32(ifindex)}})
			if err != nil || int32(ret) != redirect {
				return fmt.Errorf("verdict %d, not on the shortcut: %w", int32(ret), err)
			}
		}
		after, err := p.Stats()
		if err != nil {
			return err
		}
		least = min(least, float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount))
		return nil
	}
	for b.Loop() {
		if err := fx.do(run); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(least, "ns/packet")
	b.ReportMetric(0, "ns/op")
}
