// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/observe"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/hubbleflow"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Formats of "observe".
const (
	formatCompact = "compact"
	formatJSON    = "json"
	formatJSONPB  = "jsonpb"
)

// lastByDefault is how many connections a call without --follow shows.
const lastByDefault = 20

// observeFlags are those of "observe".
type observeFlags struct {
	observe.Options
	format string
	ips    []string
	ports  []uint
}

func newObserve(a *app) *cobra.Command {
	var f observeFlags
	c := &cobra.Command{
		Use:   "observe",
		Short: "Show connections that begin, change and end, and dropped packets",
		Long: `Show connections that begin, change and end, and dropped packets, one line each.

Without --follow it shows the connections in the table that were used last. With
it, the table is read again after a second, or later: the reading takes at most a
fiftieth of a processor, and nothing runs per packet. A shorter connection stays
in the table for some seconds, so it is seen too, unless it was one of a hostPort.
Lines say what is not shown, and why. Several values of a flag are alternatives,
several flags must all match. -o jsonpb has the messages of Hubble's API.`,
		Example: `  sluice observe --last 50
  sluice observe --follow --pod default/web --verdict dropped
  sluice observe -f --ip 192.0.2.0/24 --port 443 -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			return a.withDatapath(c.Context(), func(dp loader.Interface) error { return a.observe(c, dp, f) },
				func() error {
					if f.format != formatCompact {
						return fmt.Errorf("%w: no pod of this node uses the eBPF datapath yet", loader.ErrNotLoaded)
					}
					return a.say(notLoaded)
				})
		},
	}
	flags := c.Flags()
	flags.BoolVarP(&f.Follow, "follow", "f", false, "go on until interrupted")
	flags.UintVar(&f.Last, "last", lastByDefault, "first show the `n` connections that were used last; with --follow none by default")
	flags.BoolVar(&f.All, "all", false, "first show all connections")
	flags.StringSliceVar(&f.Filter.Pods, "pod", nil, "only this `pod`: an address, NAMESPACE/NAME or its beginning, or the beginning of a container ID")
	flags.StringSliceVar(&f.ips, "ip", nil, "only this `address`, or network, at either end")
	flags.UintSliceVar(&f.ports, "port", nil, "only this `port`, at either end")
	flags.StringSliceVar(&f.Filter.Protos, "protocol", nil, "only this `protocol`: "+orList(flowProtos)+", or a number")
	flags.StringSliceVar(&f.Filter.Verdicts, "verdict", nil, "only this `verdict`: "+orList(verdicts))
	flags.StringSliceVar(&f.Filter.Reasons, "drop-reason", nil, "only packets dropped for this `reason`, as \"sluice drops\" names it")
	flags.Uint64Var(&f.Sample, "sample", 1, "show one of `n` connections, and say how much is not shown")
	flags.UintVar(&f.Rate, "max-rate", 0, "show at most `n` lines a second, and say how many more there were; 0: all")
	flags.StringVarP(&f.format, "output", "o", formatCompact, "output `format`: compact, json or jsonpb")
	for name, values := range map[string][]string{
		"output": {formatCompact, formatJSON, formatJSONPB}, "protocol": flowProtos, "verdict": verdicts, "drop-reason": reasonNames(),
	} {
		must(c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
	return c
}

var verdicts = []string{flowevent.VerdictForwarded, flowevent.VerdictDropped}

// check decodes what the flags say, and refuses what nothing can match.
func (f *observeFlags) check(c *cobra.Command) error {
	if f.Follow && !c.Flags().Changed("last") {
		f.Last = 0
	}
	lower(f.Filter.Verdicts)
	lower(f.Filter.Protos)
	for _, list := range []struct {
		flag          string
		given, choice []string
	}{
		{"--output", []string{f.format}, []string{formatCompact, formatJSON, formatJSONPB}},
		{"--verdict", f.Filter.Verdicts, verdicts}, {"--drop-reason", f.Filter.Reasons, reasonNames()},
	} {
		for _, v := range list.given {
			if err := (enumValue{new(string), list.choice}).Set(v); err != nil {
				return fmt.Errorf("%s %q: %w", list.flag, v, err)
			}
		}
	}
	for _, p := range f.Filter.Protos {
		if (&flowevent.Event{Proto: p}).Number() == 0 {
			return fmt.Errorf("--protocol %q: must be %s, or a number from 1 to 255", p, orList(flowProtos))
		}
	}
	for _, s := range f.ips {
		p, err := network(s)
		if err != nil {
			return err
		}
		f.Filter.Networks = append(f.Filter.Networks, p)
	}
	for _, p := range f.ports {
		if p == 0 || p > 65535 {
			return fmt.Errorf("--port %d: must be 1 to 65535", p)
		}
		f.Filter.Ports = append(f.Filter.Ports, uint16(p))
	}
	for _, p := range f.Filter.Pods {
		if ip, err := netip.ParseAddr(p); err == nil && ip.Zone() != "" {
			return errZone("--pod", p)
		}
		if p == "" {
			return errors.New(`--pod "": must be an address, NAMESPACE/NAME or the beginning of a container ID`)
		}
	}
	return nil
}

func lower(words []string) {
	for i, w := range words {
		words[i] = strings.ToLower(w)
	}
}

// network reads an address or a network.
func network(s string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		if ip.Zone() != "" {
			return netip.Prefix{}, errZone("--ip", s)
		}
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("--ip %q: not an IP address or a network", s)
	}
	return p.Masked(), nil
}

func (a *app) observe(c *cobra.Command, dp loader.Interface, f observeFlags) error {
	f.Pod, f.Backend = a.pods().find, backend
	emit := func(e flowevent.Event) error { return a.say("%s", a.eventText(&e)) }
	switch enc := json.NewEncoder(a.out); f.format {
	case formatJSON:
		emit = func(e flowevent.Event) error { return enc.Encode(e) }
	case formatJSONPB:
		host, _ := os.Hostname()
		emit = func(e flowevent.Event) error {
			line, err := hubbleflow.JSON(&e, strings.ToLower(host))
			if err == nil {
				_, err = a.out.Write(line)
			}
			return err
		}
	}
	return observe.Run(c.Context(), dp, f.Options, emit)
}

// eventText is the line for people.
func (a *app) eventText(e *flowevent.Event) string {
	at := e.Time.Local().Format(clockLayout)
	if e.Event == flowevent.Lost {
		return a.colours.yellow(fmt.Sprintf("%s  %d more, not shown: %s", at, e.Lost, lostText[e.Reason]))
	}
	packet := "not IP"
	if e.Source.IsValid() {
		packet = e.Proto + " " + endText(e.Source) + " > " + endText(e.Destination)
	}
	if e.Outside.IsValid() {
		packet += " as " + endText(e.Outside)
	}
	if e.Backend.IsValid() {
		packet += " at " + endText(e.Backend)
	}
	verdict, tail := a.colours.green(e.Verdict), e.State
	switch e.Event {
	case flowevent.Dropped:
		if header := e.Header.String(); header != "" {
			packet += " [" + header + "]"
		}
		verdict, tail = a.colours.red(e.Verdict), e.Reason+": "+e.Text
	case flowevent.Ended:
		tail = e.Reason
	}
	if e.Event != flowevent.Dropped {
		if e.Fast {
			tail += ", fast"
		}
		tail += fmt.Sprintf(", %s packets, %s bytes", countText(e.RxPackets+e.TxPackets), bytesText(e.RxBytes+e.TxBytes))
	}
	line := fmt.Sprintf("%s  %-8s  %s  %s, pod %s: %s", at, e.Event, verdict, packet, a.podText(e.Pod), tail)
	return strings.ReplaceAll(line, "\n", `\n`) // one event, one line, whatever a pod is called
}

// backend asks the kernel's connection table, where kube-proxy's translation is. What cannot be asked is not known.
func backend(proto uint8, from, to netip.AddrPort) netip.AddrPort {
	f, err := rtnl.FindFlow(proto, from, to)
	if err != nil || f.ReplySrc == to {
		return netip.AddrPort{}
	}
	return f.ReplySrc
}

var lostText = map[string]string{
	flowevent.LostBuffer: "the kernel had no room for their records, or the limit on these",
	flowevent.LostBusy:   "another process reads the dropped packets",
	flowevent.LostRate:   "--max-rate",
	flowevent.LostSample: "--sample",
}

func (a *app) podText(p *flowevent.Pod) string {
	switch {
	case p == nil:
		return "-"
	case p.Name != "" && !a.wide:
		return p.Namespace + "/" + p.Name
	case p.Name != "":
		return p.Namespace + "/" + p.Name + " " + p.ContainerID
	}
	return p.Network + "/" + shortID(p.ContainerID, a.wide) + "/" + p.IfName
}
