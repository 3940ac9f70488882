// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/pktgen"
)

// udpHostPort is the scenario of short datagrams: client -> hostPort -> pod.
const udpHostPort = "udp_hostport"

// udp is one run of the comparison.
type udp struct {
	common
	out    string
	pods   int
	rounds int
	each   time.Duration
	worlds []*udpWorld
	run    report.Run
}

// udpWorld is a world with what floods it.
type udpWorld struct {
	*subject.World
	flood *pktgen.Socket
	frame []byte
}

// clientPort is where the flow comes from.
const clientPort = 40000

func runUDP(ctx context.Context, args []string) (err error) {
	u := &udp{}
	f := flag.NewFlagSet("bench udp", flag.ContinueOnError)
	u.register(f, "direct,reference,sluice")
	f.StringVar(&u.out, "out", filepath.Join("bench", "out", "udp.json"), "JSON report")
	f.IntVar(&u.pods, "pods", 2, "pods with one hostPort each")
	f.IntVar(&u.rounds, "rounds", 9, "rounds over all peers")
	f.DurationVar(&u.each, "time", 500*time.Millisecond, "length of one flood")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	defer func() { err = errors.Join(err, u.close()) }()
	if err := u.prepare(ctx); err != nil {
		return err
	}
	u.describe(os.Stdout)
	for _, s := range u.suites {
		w, err := subject.Build(ctx, subject.Options{Suite: s, Pods: u.pods, Masquerade: u.masquerade, Stateful: u.stateful, LastPod: u.lastPod, Datagrams: true}, func(int) {})
		if err != nil {
			return err
		}
		u.cleanup = append(u.cleanup, w.Close)
		f, err := newUDPWorld(w)
		if err != nil {
			return err
		}
		u.cleanup = append(u.cleanup, f.flood.Close)
		u.worlds = append(u.worlds, f)
	}
	for round := range u.rounds {
		if err := u.round(round); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return u.write()
}

// newUDPWorld makes sender and frame.
func newUDPWorld(w *subject.World) (*udpWorld, error) {
	f := &udpWorld{World: w}
	client := w.Lab().Client()
	var uplink *net.Interface
	err := w.Lab().Node.Do(func() (err error) {
		uplink, err = net.InterfaceByName(client.Uplink.Name)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.frame = frame4(uplink.HardwareAddr, netip.AddrPortFrom(netlab.IP4(client.Uplink.Client), clientPort), w.Target())
	return f, client.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err == nil {
			f.flood, err = pktgen.NewSocket(dev.Index)
		}
		return err
	})
}

// round measures every peer once; who comes first in one round comes last in the next.
func (u *udp) round(round int) error {
	worlds := slices.Clone(u.worlds)
	if round%2 == 1 {
		slices.Reverse(worlds)
	}
	for _, w := range worlds {
		if err := u.measure(w); err != nil {
			return fmt.Errorf("%s: %w", w.Suite.Name, err)
		}
	}
	return nil
}

func (u *udp) measure(w *udpWorld) error {
	if err := w.Greet(clientPort); err != nil {
		return err
	}
	before, err := w.Delivered()
	if err != nil {
		return err
	}
	took, busy, err := sendFor(w.Lab().Client(), w.flood, w.frame, u.each)
	if err != nil {
		return err
	}
	after, err := w.Delivered()
	if err != nil {
		return err
	}
	perSecond, err := rate(after-before, took)
	if err != nil {
		return err
	}
	perBusy, err := rate(after-before, busy)
	u.run.Add(udpHostPort, w.Suite.Name, u.pods, report.PacketRate, perSecond)
	u.run.Add(udpHostPort, w.Suite.Name, u.pods, report.PacketCost, perBusy)
	return err
}

func (u *udp) write() error {
	fmt.Printf("sent by a packet socket on CPU %d, whose thread also carries them to the pod's socket: its CPU time is measured\n", senderCPU)
	style := report.Style{Colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""}
	sections := []report.Section{{
		Scenario: udpHostPort, Pods: u.pods, Metrics: []report.Metric{report.PacketCost, report.PacketRate},
		Title: fmt.Sprintf("UDP packets of 64 bytes, client -> hostPort -> pod, %d pods: median of %d rounds, ratio to direct in the same round", u.pods, u.rounds),
	}}
	if err := u.run.WriteTable(os.Stdout, sections[0], u.names(), subject.Direct, style); err != nil {
		return err
	}
	key := report.Key{Scenario: udpHostPort, Peer: subject.Sluice, Pods: u.pods, Metric: report.PacketCost.Name}
	of := key
	of.Peer = subject.Reference
	goals := []report.Goal{{Text: "UDP 64-byte packets through a hostPort >= 1.5x the reference, a second of CPU time", Key: key, Of: &of, Min: 1.5}}
	if _, err := u.run.WriteGoals(os.Stdout, goals, style); err != nil {
		return err
	}
	return report.WriteJSON(u.out, u.run.Rows(sections, u.names(), subject.Direct))
}
