// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// dropEventView is one dropped packet as "monitor -o json" prints it, on a line of its own.
type dropEventView struct {
	Time    time.Time      `json:"time"`
	Reason  string         `json:"reason"`
	Text    string         `json:"text"`
	Device  string         `json:"device"`
	Program string         `json:"program"`
	Proto   string         `json:"proto,omitempty"`
	Source  netip.AddrPort `json:"source,omitzero"` // port 0 without one
	Dest    netip.AddrPort `json:"destination,omitzero"`
	Detail  string         `json:"detail,omitempty"`
	Len     int            `json:"length"` // of the frame, bytes
	Owner   *ownerView     `json:"owner"`  // null: not a pod's, or not known
	Data    string         `json:"data"`   // first bytes of the frame, hexadecimal
}

// lostView is a line that says how many drops have none.
type lostView struct {
	Time time.Time `json:"time"`
	Lost uint64    `json:"lost"`
}

type monitorFilter struct {
	pod, reason, device string
	limit               uint
}

// check refuses what no packet can have.
func (f monitorFilter) check() error {
	if ip, err := netip.ParseAddr(f.pod); err == nil && ip.Zone() != "" {
		return errZone("--pod", f.pod)
	}
	return nil
}

func reasonNames() []string {
	names := make([]string, 0, drops.Max)
	for r := drops.Reason(1); r < drops.Max; r++ {
		names = append(names, r.Name())
	}
	return names
}

func newMonitor(a *app) *cobra.Command {
	var f monitorFilter
	c := &cobra.Command{
		Use:   "monitor",
		Short: "Show the packets that the datapath drops, as it drops them",
		Long: `Show the packets that the datapath drops, as it drops them, until interrupted.

Each line has the time, the reason, the packet, where it was dropped and whose it
was. Programs write records only while this runs, at most 1000 a second on each
processor: a flood is counted (sluice drops) and said, not shown. Addresses are
as far as they had been translated. With -o json each line is an object, with the
first 128 bytes of the frame. One monitor runs at a time.`,
		Example: `  sluice monitor
  sluice monitor --pod 10.1.0.5 --reason spoofed-ip
  sluice monitor --pod shop/cart-0 -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withDatapath(c.Context(), func(dp loader.Interface) error { return a.monitor(c, dp, f) },
				func() error {
					if a.output == outputJSON {
						return nil // no object, no line
					}
					return a.say(notLoaded)
				})
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.pod, "pod", "", "only packets of this `pod`: an address, NAMESPACE/NAME, or the beginning of a container ID")
	flags.StringVar(&f.device, "device", "", "only packets dropped on this `device`")
	flags.UintVar(&f.limit, "limit", 0, "end after `n` packets")
	must(c.RegisterFlagCompletionFunc("pod", a.completePods(0)))
	choiceFlag(c, &f.reason, "reason", "only packets dropped for this `reason`", reasonNames(), "")
	return c
}

// ownersAnew is how often the records are read for an attachment that they do not name.
const ownersAnew = time.Second

func (a *app) monitor(c *cobra.Command, dp loader.Interface, f monitorFilter) error {
	if err := f.check(); err != nil {
		return err
	}
	owners, shown, missed := a.ownersFor(f.pod), uint(0), map[uint64]time.Time{}
	enc := json.NewEncoder(a.out)
	for e, err := range dp.Events(c.Context()) {
		if err != nil {
			return err
		}
		if e.Lost > 0 {
			if err := a.lost(enc, e); err != nil {
				return err
			}
			continue
		}
		if _, ok := owners[e.Owner]; !ok && e.Owner != 0 && time.Since(missed[e.Owner]) >= ownersAnew {
			owners, missed[e.Owner] = a.ownersFor(f.pod), time.Now() // a pod that came later, or one that no record names
		}
		v := dropEventViewOf(e, owners)
		if !f.matches(v) {
			continue
		}
		var err error
		if a.output == outputJSON {
			err = enc.Encode(v)
		} else {
			err = a.say("%s", v.text(a))
		}
		if shown++; err != nil || shown == f.limit {
			return err
		}
	}
	return nil
}

func (a *app) lost(enc *json.Encoder, e loader.DropEvent) error {
	if a.output == outputJSON {
		return enc.Encode(lostView{e.Time, e.Lost})
	}
	return a.say("%s", a.colours.yellow(fmt.Sprintf("%s  %d more dropped, not shown", e.Time.Format(clockLayout), e.Lost)))
}

const clockLayout = "15:04:05.000"

func dropEventViewOf(e loader.DropEvent, o owners) dropEventView {
	v := dropEventView{
		Time: e.Time, Reason: e.Reason.Name(), Text: e.Reason.String(), Device: e.Device, Program: e.Program, Len: e.Len,
		Source: e.Packet.Src, Dest: e.Packet.Dst, Detail: e.Packet.Header.String(), Data: hex.EncodeToString(e.Data),
	}
	if v.Source.IsValid() {
		v.Proto = ipproto.Name(e.Packet.Proto)
	}
	if e.Owner != 0 {
		owner := o.view(e.Owner)
		v.Owner = &owner
	}
	return v
}

func (f monitorFilter) matches(v dropEventView) bool {
	return (f.reason == "" || f.reason == v.Reason) && (f.device == "" || f.device == v.Device) && f.matchesPod(v)
}

func (f monitorFilter) matchesPod(v dropEventView) bool {
	if f.pod == "" {
		return true
	}
	if ip, err := netip.ParseAddr(f.pod); err == nil {
		return slices.Contains([]netip.Addr{v.Source.Addr(), v.Dest.Addr()}, ip.Unmap())
	}
	return v.Owner != nil && v.Owner.isCalled(f.pod)
}

func (v dropEventView) text(a *app) string {
	packet := "not IP"
	if v.Source.IsValid() {
		packet = v.Proto + " " + endText(v.Source) + " > " + endText(v.Dest)
		if v.Detail != "" {
			packet += " [" + v.Detail + "]"
		}
	}
	owner := "-"
	if v.Owner != nil {
		owner = v.Owner.text(a.wide)
	}
	return fmt.Sprintf("%s  %s  %s, %d bytes, on %s, pod %s: %s",
		v.Time.Format(clockLayout), a.colours.red(v.Reason), packet, v.Len, v.Device, owner, v.Text)
}

// endText leaves out a port that is none.
func endText(p netip.AddrPort) string {
	if p.Port() == 0 {
		return p.Addr().String()
	}
	return p.String()
}
