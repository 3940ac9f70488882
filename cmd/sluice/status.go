// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/ipproto"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the datapath on one screen",
		Long: `Show the datapath on one screen: which back end and why, the programs on each
device, the maps and how full they are, dropped packets by reason, attachments.

-w adds every pod device, every probe and every address of the node.`,
		Example: `  sluice status
  sluice status -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			records, missed := a.recordsForStatus()
			var v statusView
			err := a.withDatapath(c.Context(), func(dp loader.Interface) (err error) {
				v, err = a.status(c.Context(), dp, records)
				return err
			}, func() (err error) {
				v, err = a.status(c.Context(), nil, records)
				return err
			})
			if err != nil {
				return err
			}
			return errors.Join(a.print(v, func() error { return a.statusScreen(v) }), missed, v.missed)
		},
	}
}

func (a *app) recordsForStatus() ([]*attachments.Record, error) {
	records, err := a.node.Records()
	if err != nil {
		err = fmt.Errorf("read the attachment records: %w", err)
	}
	return records, err // those that can be read
}

// status joins what the datapath (nil: nothing is loaded) and the node's files say. What else could not be read is in missed.
func (a *app) status(ctx context.Context, dp loader.Interface, records []*attachments.Record) (statusView, error) {
	var st *loader.Status
	var err error
	if dp != nil {
		st, err = dp.Status(ctx)
	} else if st, err = a.node.Decision(ctx); errors.Is(err, loader.ErrNotLoaded) {
		st, err = nil, nil
	}
	if err != nil {
		return statusView{}, err
	}
	v := newStatusView(st, records)
	v.Loaded = dp != nil
	if dp != nil {
		networked, err := dp.NetworkPolicies(ctx)
		if err != nil && !errors.Is(err, loader.ErrNotLoaded) { // programs of an earlier build have no such maps
			return v, err
		}
		v.NetworkPolicy = newNetworkPolicyView(networked, records)
	}
	choices, cerr := a.node.Choices()
	if cerr != nil {
		cerr = fmt.Errorf("read which tables were chosen: %w", cerr)
	}
	places, perr := a.node.Places()
	if perr != nil {
		perr = fmt.Errorf("look for the pins of other mount namespaces: %w", perr)
	}
	conflicts, nerr := a.node.Conflicts(records)
	if nerr != nil {
		nerr = fmt.Errorf("look for sockets of the node on hostPorts: %w", nerr)
	}
	for _, c := range conflicts {
		v.PortConflicts = append(v.PortConflicts, conflictView{c.HostIP, ipproto.Name(c.Proto), c.Port, c.Socket})
	}
	v.Choices, v.Places, v.missed = newChoiceViews(choices), places, errors.Join(cerr, perr, nerr)
	return v, nil
}

// statusScreen prints the sections in the order in which one asks: does it run,
// on what, how full is it, what went wrong, who uses it.
func (a *app) statusScreen(v statusView) error {
	if err := a.say("%s", a.colours.bold("Sluice "+v.Version)); err != nil {
		return err
	}
	sections := []func(statusView) error{a.statusHead, a.statusPlaces, a.statusBackends, a.statusProbes}
	if v.Loaded {
		sections = append(sections, a.statusDevices, a.statusMaps, a.statusDrops)
	}
	sections = append(sections, a.statusConflicts, a.statusNetworkPolicy, a.statusAttachments)
	for _, section := range sections {
		if err := section(v); err != nil {
			return err
		}
	}
	return nil
}

// statusNetworkPolicy says which pods wait for the agent.
func (a *app) statusNetworkPolicy(v statusView) error {
	p := v.NetworkPolicy
	if p == nil {
		return nil
	}
	errs := []error{a.field("NetworkPolicy", fmt.Sprintf("%d attachments, %d restricted", p.Attachments, p.Restricted), a.colours.plain)}
	for _, c := range p.Closed {
		text := fmt.Sprintf("%s, for %.0f s: the agent does not know the pod yet, or its policies do not fit", c.Owner.text(a.wide), c.Seconds)
		errs = append(errs, a.field("closed", text, a.colours.yellow))
	}
	return errors.Join(errs...)
}

// statusPlaces says where nothing was found, and names each other mount namespace
// that has pins.
func (a *app) statusPlaces(v statusView) error {
	var errs []error
	for _, p := range v.Places {
		switch {
		case p.PID == 0 && !v.Loaded:
			errs = append(errs, a.field("looked at", p.Path, a.colours.plain))
		case p.PID != 0:
			text := fmt.Sprintf("a datapath of this network namespace is pinned at %s, in the mount namespace of process %d", p.Path, p.PID)
			errs = append(errs, a.field("elsewhere", text, a.colours.yellow))
		}
	}
	return errors.Join(errs...)
}

func (a *app) statusHead(v statusView) error {
	if !v.Loaded {
		err := a.say(notLoaded)
		if v.Backend == backendNone {
			err = errors.Join(err, a.field("back end", v.Backend+": "+v.Reason, a.colours.red))
		}
		return err
	}
	c, plain := v.Config, a.colours.plain
	if c == nil {
		return errors.Join(
			a.field("back end", v.Backend+": "+v.Reason, a.colours.green),
			a.field("kernel", v.Kernel, plain),
			a.field("settings", "not known", a.colours.yellow),
			a.field("pins", v.PinPath+" (build "+v.Build+")", plain))
	}
	return errors.Join(
		a.field("back end", v.Backend+": "+v.Reason, a.colours.green),
		a.field("kernel", v.Kernel+", programs on uplinks by "+v.AttachUplinks+", on pods by "+v.AttachPods, plain),
		a.field("settings", "fast path "+c.FastPath+relearnText(c.Relearn)+", anti-spoofing "+onOff(c.AntiSpoof)+", admit mark "+c.AdmitMark, plain),
		a.field("SNAT ports", strings.Join(c.SNATPorts, ", "), plain),
		a.field("pins", v.PinPath+" (build "+v.Build+")", plain))
}

// relearnText says how often connections are confirmed again, if they are.
func relearnText(every uint32) string {
	if every == 0 {
		return ""
	}
	return fmt.Sprintf(" (relearned every %d s)", every)
}

// backendNone is the loader's word for a node where eBPF cannot run.
const backendNone = "none"

// statusProbes names what the kernel lacks; with -w every probe. A datapath
// that was unloaded has nothing to explain.
func (a *app) statusProbes(v statusView) error {
	if !v.Loaded && v.Backend != backendNone {
		return nil
	}
	for _, p := range v.Probes {
		if p.Answer == string(loader.AnswerYes) && !a.wide {
			continue
		}
		text, paint := p.Name+": "+p.Answer, a.colours.plain
		for _, more := range []string{p.Reason, p.Consequence} {
			if more != "" {
				text += "; " + more
			}
		}
		if p.Answer != string(loader.AnswerYes) {
			paint = a.colours.yellow
		}
		if err := a.field("probe", text, paint); err != nil {
			return err
		}
	}
	return nil
}

// statusDevices lists uplinks one by one and pods by number, except those that
// lack a program.
func (a *app) statusDevices(v statusView) error {
	t := table{columns: []column{{name: "DEVICE", cut: true}, {name: "ROLE"}, {name: "PROGRAMS", cut: true}, {name: "MASQUERADES AS", drop: 1}}}
	pods, programs := 0, 0
	for _, d := range v.Devices {
		if d.Role == "pod" && d.ok() && !a.wide {
			pods++
			programs += len(d.Programs)
			continue
		}
		t.add(cmp.Or(d.Name, "gone"), d.Role, a.programsText(d), d.sources())
	}
	if pods > 0 {
		t.add(plural(pods, "pod"), "pod", plural(programs, "program")+", all attached", "")
	}
	if len(t.rows) == 0 {
		t.add("none", "", "", "")
	}
	errs := []error{a.say(""), a.table(&t), a.statusLocal(v.Local)}
	for _, u := range v.UnhandledLinks {
		errs = append(errs, a.field("unhandled", u.Name+": "+u.Why, a.colours.yellow))
	}
	if a.wide {
		for _, h := range v.HostAddresses {
			errs = append(errs, a.field("node", fmt.Sprintf("%s on ifindex %d", h.Address, h.Ifindex), a.colours.plain))
		}
	}
	return errors.Join(errs...)
}

// statusLocal says whether the node's own processes reach published ports; with
// -w by which programs.
func (a *app) statusLocal(l *localView) error {
	switch {
	case l == nil:
		return nil
	case !l.Attached:
		return a.field("local", "the node's own processes do not reach host ports: "+l.Reason, a.colours.yellow)
	case a.wide:
		return a.field("local", a.programsText(deviceView{Programs: l.Programs})+" at "+l.Cgroup, a.colours.plain)
	}
	return a.field("local", plural(len(l.Programs), "program")+" at "+l.Cgroup+", all attached", a.colours.plain)
}

// statusConflicts names hostPorts that take what sockets of the node wait for.
func (a *app) statusConflicts(v statusView) error {
	var errs []error
	for _, c := range v.PortConflicts {
		at := netip.AddrPortFrom(c.HostIP, c.HostPort)
		errs = append(errs, a.field("conflict", fmt.Sprintf("hostPort %s/%s takes what a socket of the node waits for at %s", at, c.Proto, c.Socket), a.colours.yellow))
	}
	return errors.Join(errs...)
}

func (v deviceView) ok() bool {
	return !slices.ContainsFunc(v.Programs, func(p programView) bool { return !p.OK })
}

func (v deviceView) sources() string {
	var s []string
	if v.Source4.IsValid() {
		s = append(s, v.Source4.String())
	}
	if v.Source6.IsValid() {
		s = append(s, v.Source6.String())
	}
	return strings.Join(s, ", ")
}

// programsText is "ingress #12, egress #13"; a program that is missing or of
// another build says so.
func (a *app) programsText(d deviceView) string {
	s := make([]string, 0, len(d.Programs))
	for _, p := range d.Programs {
		switch {
		case p.ID == 0:
			s = append(s, p.Hook+" MISSING")
		case !p.OK:
			s = append(s, fmt.Sprintf("%s #%d of another build", p.Hook, p.ID))
		default:
			s = append(s, fmt.Sprintf("%s #%d", p.Hook, p.ID))
		}
	}
	return strings.Join(s, ", ")
}

func (a *app) statusMaps(v statusView) error {
	t := table{columns: []column{
		{name: "MAP"}, {name: "ENTRIES", align: right, drop: 2}, {name: "IN USE", align: right}, {name: "MAX", align: right}, {name: "FILL", align: right}, {name: "TYPE", drop: 1},
	}}
	for _, m := range v.Maps {
		fill := "-"
		switch {
		case m.Fill != nil:
			fill = fmt.Sprintf("%.0f%%", 100**m.Fill)
		case !a.wide:
			continue
		}
		t.add(m.Name, strconv.Itoa(m.Entries), strconv.Itoa(m.InUse), strconv.Itoa(m.Max), fill, m.Type)
	}
	return errors.Join(a.say(""), a.table(&t))
}

func (a *app) statusDrops(v statusView) error {
	t := table{columns: []column{{name: "DROPPED"}, {name: "PACKETS", align: right}}}
	for _, d := range v.Drops {
		if d.Packets > 0 || a.wide {
			t.add(d.Reason, strconv.FormatUint(d.Packets, 10))
		}
	}
	if len(t.rows) == 0 {
		return errors.Join(a.say(""), a.say("No packet was dropped."))
	}
	return errors.Join(a.say(""), a.table(&t))
}

func (a *app) statusAttachments(v statusView) error {
	byNetwork := map[string]int{}
	var unfinished []string
	for _, at := range v.Attachments {
		byNetwork[at.Network]++
		if len(at.Unfinished) > 0 {
			unfinished = append(unfinished, fmt.Sprintf("%s/%s/%s (%s)",
				at.Network, shortID(at.ContainerID, a.wide), at.IfName, strings.Join(at.Unfinished, ", ")))
		}
	}
	var networks []string
	for _, name := range slices.Sorted(maps.Keys(byNetwork)) {
		networks = append(networks, fmt.Sprintf("%s %d", name, byNetwork[name]))
	}
	line := plural(len(v.Attachments), "attachment")
	if len(networks) > 0 {
		line += ": " + strings.Join(networks, ", ")
	}
	errs := []error{a.say(""), a.say("%s", line)}
	if len(unfinished) > 0 {
		errs = append(errs, a.say("%s", a.colours.yellow("ADD not completed: "+strings.Join(unfinished, "; "))))
	}
	for _, why := range slices.Sorted(maps.Keys(v.NoNetkit)) {
		errs = append(errs, a.say("%s", a.colours.yellow(plural(v.NoNetkit[why], "attachment")+" with veths instead of netkit devices: "+why)))
	}
	if v.UnreadableFiles > 0 {
		errs = append(errs, a.say("%s", a.colours.red(plural(v.UnreadableFiles, "record")+" cannot be read")))
	}
	return errors.Join(errs...)
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
