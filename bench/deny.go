// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/sluice-cni/sluice/bench/peer"
	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/test/flood"
	"github.com/sluice-cni/sluice/pkg/test/lab"
)

// xdpDeny is the scenario of a denied source that floods an uplink.
const xdpDeny = "xdp_deny"

// The peers of xdp_deny: a rule of iptables' first table, and the deny list.
const iptablesRaw = "iptables raw"

// deniedNets are the sources of the flood, by family.
var deniedNets = map[int]netip.Prefix{4: netip.MustParsePrefix("203.0.113.0/24"), 6: netip.MustParsePrefix("2001:db8:bad::/48")}

// deny is one run of the comparison: a node, its uplink, and a client that floods it.
type deny struct {
	out    string
	rounds int
	each   time.Duration

	lab    *lab.Lab
	flood  *flood.Flood
	frames map[int][]byte
	run    report.Run
}

func runDeny(ctx context.Context, args []string) (err error) {
	d := &deny{}
	f := flag.NewFlagSet("bench deny", flag.ContinueOnError)
	f.StringVar(&d.out, "out", filepath.Join("bench", "out", "deny.json"), "JSON report")
	f.IntVar(&d.rounds, "rounds", 7, "rounds over both peers and families")
	f.DurationVar(&d.each, "time", time.Second, "length of one flood")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if os.Geteuid() != 0 {
		return errors.New("namespaces need root")
	}
	if d.lab, err = lab.New(lab.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.lab.Close()) }()
	if err := d.prepare(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.flood.Close()) }()
	for round := range d.rounds {
		for _, family := range []int{4, 6} {
			if err := d.round(ctx, round, family); err != nil {
				return err
			}
		}
	}
	return d.write()
}

// prepare makes the sender, the frames, and an uplink that polls as hardware does.
func (d *deny) prepare() error {
	var mac net.HardwareAddr
	uplink := d.lab.Client().Uplink
	err := d.lab.Node.Do(func() error {
		dev, err := net.InterfaceByName(uplink.Name)
		if err == nil {
			mac = dev.HardwareAddr
			err = flood.SetGRO(uplink.Name, true)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.frames = map[int][]byte{
		4: frame4(mac, deniedNets[4].Addr().Next(), lab.IP4(uplink.Node)),
		6: frame6(mac, deniedNets[6].Addr().Next(), lab.IP6(uplink.Node)),
	}
	return d.lab.Client().Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err == nil {
			d.flood, err = flood.New(dev.Index)
		}
		return err
	})
}

// round floods both ways of dropping, one right after the other; who comes first alternates.
func (d *deny) round(ctx context.Context, round, family int) error {
	both := []func(context.Context, int) error{d.byIPTables, d.byXDP}
	if round%2 == 1 {
		both[0], both[1] = both[1], both[0]
	}
	for _, f := range both {
		if err := f(ctx, family); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (d *deny) byIPTables(_ context.Context, family int) error {
	tool := map[int]string{4: "iptables", 6: "ip6tables"}[family]
	rule := []string{"PREROUTING", "-s", deniedNets[family].String(), "-j", "DROP"}
	run := func(args ...string) (out string, err error) {
		err = d.lab.Node.Do(func() error {
			out, err = lab.Run(tool, append([]string{"-w", "-t", "raw"}, args...)...)
			return err
		})
		return out, err
	}
	if _, err := run(append([]string{"-I"}, rule...)...); err != nil {
		return err
	}
	rate, err := d.measure(func() (uint64, error) {
		out, err := run("-nvxL", "PREROUTING")
		if err != nil {
			return 0, err
		}
		m := regexp.MustCompile(`(?m)^\s*(\d+)\s+\d+\s+DROP`).FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("no DROP rule in %q", out)
		}
		return strconv.ParseUint(m[1], 10, 64)
	}, family)
	_, delErr := run(append([]string{"-D"}, rule...)...)
	d.run.Add(xdpDeny, iptablesRaw, family, report.DropRate, rate)
	return errors.Join(err, delErr)
}

func (d *deny) byXDP(ctx context.Context, family int) error {
	networks := []netip.Prefix{deniedNets[family]}
	with := func(f func(dp *loader.Datapath) error) error {
		return d.lab.Node.Do(func() error {
			dp, err := loader.Open(ctx, loader.Options{})
			if err != nil {
				return err
			}
			return errors.Join(f(dp), dp.Close())
		})
	}
	if err := with(func(dp *loader.Datapath) error { return dp.DenyAdd(ctx, networks) }); err != nil {
		return err
	}
	rate, err := d.measure(func() (n uint64, err error) {
		err = with(func(dp *loader.Datapath) error {
			s, err := dp.Deny(ctx)
			if err != nil {
				return err
			}
			if s.Devices[0].Mode != "native" {
				return fmt.Errorf("the deny list runs in mode %q: %s", s.Devices[0].Mode, s.Devices[0].Why)
			}
			n = s.Entries[0].Packets
			return nil
		})
		return n, err
	}, family)
	d.run.Add(xdpDeny, peer.Sluice, family, report.DropRate, rate)
	return errors.Join(err, with(func(dp *loader.Datapath) error { return dp.DenyDelete(ctx, networks) }))
}

// measure floods and returns the packets dropped a second, by what count says before and after, in millions.
func (d *deny) measure(count func() (uint64, error), family int) (float64, error) {
	const burst = 1 << 16
	before, err := count()
	if err != nil {
		return 0, err
	}
	var took time.Duration
	err = d.lab.Client().Do(func() error {
		start := time.Now()
		for took < d.each {
			if err := d.flood.Send(d.frames[family], burst); err != nil {
				return err
			}
			took = time.Since(start)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	after, err := count()
	return float64(after-before) / took.Seconds() / 1e6, err
}

func (d *deny) write() error {
	style := report.Style{Colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""}
	names := []string{iptablesRaw, peer.Sluice}
	var sections []report.Section
	var goals []report.Goal
	for _, family := range []int{4, 6} {
		sections = append(sections, report.Section{
			Scenario: xdpDeny, Pods: family, Metrics: []report.Metric{report.DropRate},
			Title: fmt.Sprintf("a denied source floods the uplink, IPv%d, 60 bytes: median of %d rounds, ratio to a DROP in iptables' raw table in the same round", family, d.rounds),
		})
		of := report.Key{Scenario: xdpDeny, Peer: iptablesRaw, Pods: family, Metric: report.DropRate.Name}
		goals = append(goals, report.Goal{
			Text: fmt.Sprintf("XDP deny >= 5x iptables raw DROP, IPv%d", family),
			Key:  report.Key{Scenario: xdpDeny, Peer: peer.Sluice, Pods: family, Metric: report.DropRate.Name}, Of: &of, Min: 5,
		})
	}
	for _, s := range sections {
		if err := d.run.WriteTable(os.Stdout, s, names, iptablesRaw, style); err != nil {
			return err
		}
	}
	if _, err := d.run.WriteGoals(os.Stdout, goals, style); err != nil {
		return err
	}
	return report.WriteJSON(d.out, d.run.Rows(sections, names, iptablesRaw))
}

// header is an Ethernet header.
func header(dst net.HardwareAddr, proto uint16) []byte {
	b := append(append([]byte{}, dst...), 2, 0, 0, 0, 0, 9)
	return binary.BigEndian.AppendUint16(b, proto)
}

// frame4 is a UDP datagram of 60 bytes with Ethernet header.
func frame4(dst net.HardwareAddr, from, to netip.Addr) []byte {
	ip := []byte{0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	udp := append([]byte{0x10, 0, 0x10, 1, 0, 26, 0, 0}, make([]byte, 18)...)
	return append(append(header(dst, 0x0800), ip...), udp...)
}

// frame6 is the same in IPv6, 20 bytes longer.
func frame6(dst net.HardwareAddr, from, to netip.Addr) []byte {
	ip := append([]byte{0x60, 0, 0, 0, 0, 26, 17, 64}, append(from.AsSlice(), to.AsSlice()...)...)
	udp := append([]byte{0x10, 0, 0x10, 1, 0, 26, 0x12, 0x34}, make([]byte, 18)...)
	return append(append(header(dst, 0x86dd), ip...), udp...)
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
