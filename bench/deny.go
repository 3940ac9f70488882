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
	"slices"
	"strconv"
	"time"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/pktgen"
)

// The scenarios of a denied source that floods an uplink: with frames as hardware has them, and with socket buffers, which is what
// a veth gets from another namespace of the same machine, and has to copy before an XDP program may see them.
const (
	denyFrames  = "deny_frames"
	denyBuffers = "deny_buffers"
)

// The peers: a rule of iptables' first table, and the denylist.
const iptablesRaw = "iptables raw"

// deniedNets are the sources of the flood, by family.
var deniedNets = map[int]netip.Prefix{4: netip.MustParsePrefix("203.0.113.0/24"), 6: netip.MustParsePrefix("2001:db8:bad::/48")}

// deny is one run of the comparison.
type deny struct {
	out    string
	rounds int
	each   time.Duration
	peers  []*denyPeer
	run    report.Run
}

// denyPeer is a node that drops in one of the two ways, its uplink, and a client that floods it. Each has a node of its own: the
// other's programs and rules would be on the packets' way.
type denyPeer struct {
	name    string
	lab     *netlab.Lab
	uplink  *receiver
	frames  map[int][]byte
	senders map[string]sender
	// begin makes it drop a family; dropped is how many packets it has, end undoes begin.
	begin, end func(ctx context.Context, family int) error
	dropped    func(ctx context.Context, family int) (uint64, error)
}

func runDeny(ctx context.Context, args []string) (err error) {
	d := &deny{}
	f := flag.NewFlagSet("bench deny", flag.ContinueOnError)
	f.StringVar(&d.out, "out", filepath.Join("bench", "out", "deny.json"), "JSON report")
	f.IntVar(&d.rounds, "rounds", 7, "rounds over both peers and families")
	f.DurationVar(&d.each, "time", 500*time.Millisecond, "length of one flood")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if os.Geteuid() != 0 {
		return errors.New("namespaces need root")
	}
	defer func() { err = errors.Join(err, d.close()) }()
	for _, p := range []*denyPeer{byIPTables(), byXDP()} {
		d.peers = append(d.peers, p)
		if err := p.prepare(); err != nil {
			return err
		}
	}
	for round := range d.rounds {
		for _, family := range []int{4, 6} {
			if err := d.round(ctx, round, family); err != nil {
				return err
			}
		}
	}
	return d.write()
}

func (d *deny) close() error {
	var errs []error
	for _, p := range d.peers {
		for _, s := range p.senders {
			errs = append(errs, s.Close())
		}
		if p.lab != nil {
			errs = append(errs, p.lab.Close())
		}
	}
	return errors.Join(errs...)
}

// prepare makes node and client, the senders, the frames, and an uplink that polls as hardware does.
func (p *denyPeer) prepare() (err error) {
	if p.lab, err = netlab.New(netlab.Options{}); err != nil {
		return err
	}
	var mac net.HardwareAddr
	uplink := p.lab.Client().Uplink
	err = p.lab.Node.Do(func() (err error) {
		mac, p.uplink, err = pollingUplink(uplink.Name)
		return err
	})
	if err != nil {
		return err
	}
	p.frames = map[int][]byte{
		4: frame4(mac, netip.AddrPortFrom(deniedNets[4].Addr().Next(), 4096), netip.AddrPortFrom(netlab.IP4(uplink.Node), 4097)),
		6: frame6(mac, deniedNets[6].Addr().Next(), netlab.IP6(uplink.Node)),
	}
	p.senders = map[string]sender{}
	return p.lab.Client().Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		frames, err := pktgen.New(dev.Index)
		if err != nil {
			return err
		}
		p.senders[denyFrames] = frames
		buffers, err := pktgen.NewSocket(dev.Index)
		if err != nil {
			return err
		}
		p.senders[denyBuffers] = buffers
		return nil
	})
}

// round floods both ways of dropping, one right after the other; who comes first alternates.
func (d *deny) round(ctx context.Context, round, family int) error {
	peers := slices.Clone(d.peers)
	if round%2 == 1 {
		slices.Reverse(peers)
	}
	for _, p := range peers {
		if err := p.begin(ctx, family); err != nil {
			return err
		}
	}
	for _, scenario := range []string{denyFrames, denyBuffers} {
		for _, p := range peers {
			if err := d.measure(ctx, p, scenario, family); err != nil {
				return err
			}
		}
	}
	var errs []error
	for _, p := range peers {
		errs = append(errs, p.end(ctx, family))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// byIPTables drops by a rule.
func byIPTables() *denyPeer {
	p := &denyPeer{name: iptablesRaw}
	run := func(family int, args ...string) (out string, err error) {
		tool := map[int]string{4: "iptables", 6: "ip6tables"}[family]
		err = p.lab.Node.Do(func() error {
			out, err = netlab.Run(tool, append([]string{"-w", "-t", "raw"}, args...)...)
			return err
		})
		return out, err
	}
	rule := func(family int) []string {
		return []string{"PREROUTING", "-s", deniedNets[family].String(), "-j", "DROP"}
	}
	p.begin = func(_ context.Context, family int) error {
		_, err := run(family, append([]string{"-I"}, rule(family)...)...)
		return err
	}
	p.end = func(_ context.Context, family int) error {
		_, err := run(family, append([]string{"-D"}, rule(family)...)...)
		return err
	}
	p.dropped = func(_ context.Context, family int) (uint64, error) {
		out, err := run(family, "-nvxL", "PREROUTING")
		if err != nil {
			return 0, err
		}
		m := regexp.MustCompile(`(?m)^\s*(\d+)\s+\d+\s+DROP`).FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("no DROP rule in %q", out)
		}
		return strconv.ParseUint(m[1], 10, 64)
	}
	return p
}

// byXDP drops by the denylist.
func byXDP() *denyPeer {
	p := &denyPeer{name: subject.Sluice}
	with := func(ctx context.Context, f func(dp *loader.Datapath) error) error {
		return p.lab.Node.Do(func() error {
			dp, err := loader.Open(ctx, loader.Options{Loader: ebpfload.InProcess{}})
			if err != nil {
				return err
			}
			return errors.Join(f(dp), dp.Close())
		})
	}
	p.begin = func(ctx context.Context, family int) error {
		return with(ctx, func(dp *loader.Datapath) error { return dp.DenyAdd(ctx, []netip.Prefix{deniedNets[family]}) })
	}
	p.end = func(ctx context.Context, family int) error {
		return with(ctx, func(dp *loader.Datapath) error { return dp.DenyDelete(ctx, []netip.Prefix{deniedNets[family]}) })
	}
	p.dropped = func(ctx context.Context, _ int) (n uint64, err error) {
		err = with(ctx, func(dp *loader.Datapath) error {
			s, err := dp.Deny(ctx)
			if err != nil {
				return err
			}
			if s.Devices[0].Mode != "native" {
				return fmt.Errorf("the denylist runs in mode %q: %s", s.Devices[0].Mode, s.Devices[0].Why)
			}
			n = s.Entries[0].Packets
			return nil
		})
		return n, err
	}
	return p
}

// measure floods, and notes the packets dropped a second of time and of the receiver's CPU time, in millions.
func (d *deny) measure(ctx context.Context, p *denyPeer, scenario string, family int) error {
	before, err := p.dropped(ctx, family)
	if err != nil {
		return err
	}
	busy, err := p.uplink.busy()
	if err != nil {
		return err
	}
	took, _, err := sendFor(p.lab.Client(), p.senders[scenario], p.frames[family], d.each)
	if err != nil {
		return err
	}
	busyAfter, err := p.uplink.busy()
	if err != nil {
		return err
	}
	after, err := p.dropped(ctx, family)
	if err != nil {
		return err
	}
	perSecond, err := rate(after-before, took)
	if err != nil {
		return fmt.Errorf("%s, %s, IPv%d: %w", p.name, scenario, family, err)
	}
	d.run.Add(scenario, p.name, family, report.DropRate, perSecond)
	if scenario == denyFrames { // a veth gives socket buffers to the receiver's thread only where there is an XDP program
		perBusy, err := rate(after-before, busyAfter-busy)
		if err != nil {
			return fmt.Errorf("%s, CPU time of IPv%d: %w", p.name, family, err)
		}
		d.run.Add(scenario, p.name, family, report.DropCost, perBusy)
	}
	return nil
}

func (d *deny) write() error {
	style := report.Style{Colour: isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""}
	names := []string{iptablesRaw, subject.Sluice}
	const title = "a denied source floods the uplink, IPv%d, %s: median of %d rounds, ratio to a DROP in iptables' raw table in the same round"
	var sections []report.Section
	var goals []report.Goal
	for _, family := range []int{4, 6} {
		sections = append(sections, report.Section{
			Scenario: denyFrames, Pods: family, Metrics: []report.Metric{report.DropCost, report.DropRate},
			Title: fmt.Sprintf(title, family, "frames as hardware has them", d.rounds),
		}, report.Section{
			Scenario: denyBuffers, Pods: family, Metrics: []report.Metric{report.DropRate},
			Title: fmt.Sprintf(title, family, "socket buffers", d.rounds),
		})
		of := report.Key{Scenario: denyFrames, Peer: iptablesRaw, Pods: family, Metric: report.DropCost.Name}
		goals = append(goals, report.Goal{
			Text: fmt.Sprintf("XDP deny >= 5x iptables raw DROP, packets a second of the receiver's CPU, IPv%d", family),
			Key:  report.Key{Scenario: denyFrames, Peer: subject.Sluice, Pods: family, Metric: report.DropCost.Name}, Of: &of, Min: 5,
		})
	}
	fmt.Println(report.ThisHost())
	fmt.Println(receiverText)
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

// frame4 is a UDP datagram in the shortest frame: 64 bytes on a wire. The last four, the checksum, are not there on a veth.
func frame4(dst net.HardwareAddr, from, to netip.AddrPort) []byte {
	ip := []byte{0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = append(append(udp, 0, 26, 0, 0), make([]byte, 18)...)
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
