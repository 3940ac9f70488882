// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/doctor"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
	"github.com/sluice-cni/sluice/pkg/version"
)

// statusView is what "status -o json" prints. Its names are ours and stay,
// whatever the loader calls its own.
type statusView struct {
	Version         string            `json:"version"`
	Loaded          bool              `json:"loaded"`
	Backend         string            `json:"backend,omitempty"`
	Reason          string            `json:"reason,omitempty"`
	Decided         time.Time         `json:"decided,omitzero"`
	Kernel          string            `json:"kernel,omitempty"`
	Build           string            `json:"build,omitempty"` // of the programs that are loaded
	PinPath         string            `json:"pin_path,omitempty"`
	Places          []loader.Place    `json:"places"`                   // where pins are looked for, first, and other mount namespaces that have some
	AttachUplinks   string            `json:"attach_uplinks,omitempty"` // tcx or clsact
	AttachPods      string            `json:"attach_pods,omitempty"`
	Config          *configView       `json:"config,omitempty"` // none: nothing is loaded, or it is not known
	Choices         []choiceView      `json:"netfilter"`        // tables used where eBPF is not
	UsedBy          usedBy            `json:"used_by"`          // attachments by feature and backend
	Probes          []probeView       `json:"probes"`
	Devices         []deviceView      `json:"devices"`
	Local           *localView        `json:"local,omitempty"` // the node's own processes
	UnhandledLinks  []unhandledView   `json:"unhandled_uplinks"`
	HostAddresses   []hostAddressView `json:"host_addresses"`
	Maps            []mapView         `json:"maps"`
	Drops           []dropView        `json:"drops"`
	Endpoints       int               `json:"endpoints"`
	Attachments     []attachmentView  `json:"attachments"`
	UnreadableFiles int               `json:"unreadable_records"`
	NoNetkit        map[string]int    `json:"no_netkit,omitempty"` // attachments that got veths instead of netkit devices, by the reason
	PortConflicts   []conflictView    `json:"host_port_conflicts,omitempty"`

	NetworkPolicy *networkPolicyView `json:"network_policy,omitempty"` // none: no pod is under NetworkPolicy

	missed error // what could not be read beside the datapath
}

type configView struct {
	FastPath  string   `json:"fast_path"`
	Relearn   uint32   `json:"relearn_seconds"`
	AntiSpoof bool     `json:"anti_spoof"`
	AdmitMark string   `json:"admit_mark"`
	SNATPorts []string `json:"snat_ports"`
}

// networkPolicyView says how many attachments are under NetworkPolicy.
type networkPolicyView struct {
	Attachments int          `json:"attachments"`
	Restricted  int          `json:"restricted"` // those that policies select, closed ones included
	Closed      []closedView `json:"closed"`     // those that get nothing: the agent does not know them yet, or their policies do not fit
}

type closedView struct {
	Owner   ownerView `json:"owner"`
	Seconds float64   `json:"seconds"`
}

func newNetworkPolicyView(all []loader.NetworkPolicyStatus, records []*attachments.Record) *networkPolicyView {
	if len(all) == 0 {
		return nil
	}
	names := ownersOf(records)
	v := &networkPolicyView{Attachments: len(all), Closed: []closedView{}}
	for _, s := range all {
		if s.Set != networkpolicy.OpenSet {
			v.Restricted++
		}
		if s.Closed > 0 {
			v.Closed = append(v.Closed, closedView{names.view(s.Owner), s.Closed.Seconds()})
		}
	}
	slices.SortFunc(v.Closed, func(a, b closedView) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Owner.ID, b.Owner.ID))
	})
	return v
}

// conflictView is a hostPort that takes what a socket of the node waits for.
type conflictView struct {
	HostIP   netip.Addr     `json:"host_ip"`
	Proto    string         `json:"proto"`
	HostPort uint16         `json:"host_port"`
	Socket   netip.AddrPort `json:"socket"`
}

type probeView struct {
	Name        string `json:"name"`
	Answer      string `json:"answer"` // yes, no or unclear
	Reason      string `json:"reason,omitempty"`
	Consequence string `json:"consequence,omitempty"`
	Required    bool   `json:"required"`
}

type deviceView struct {
	Name     string        `json:"name"`
	Ifindex  int           `json:"ifindex"`
	Role     string        `json:"role"` // uplink or pod
	Source4  netip.Addr    `json:"source4,omitzero"`
	Source6  netip.Addr    `json:"source6,omitzero"`
	Programs []programView `json:"programs"`
}

type programView struct {
	Name string `json:"name"`
	Hook string `json:"hook"` // ingress or egress
	How  string `json:"how"`  // tcx, clsact or netkit
	ID   uint32 `json:"id"`
	OK   bool   `json:"ok"` // attached, and of the build that is loaded
}

// localView says whether the node's own processes reach published ports.
type localView struct {
	Cgroup   string        `json:"cgroup,omitempty"`
	Attached bool          `json:"attached"`
	Reason   string        `json:"reason,omitempty"` // why not
	Programs []programView `json:"programs"`
}

type unhandledView struct {
	Name    string `json:"name"`
	Ifindex int    `json:"ifindex"`
	Why     string `json:"why"`
}

type hostAddressView struct {
	Address netip.Addr `json:"address"`
	Ifindex int        `json:"ifindex"`
}

type mapView struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	ID      uint32   `json:"id"`
	Entries int      `json:"entries"`
	InUse   int      `json:"in_use"` // entries, but in the tables of connections those of connections that have not ended
	Max     int      `json:"max"`
	Fill    *float64 `json:"fill"` // in_use of max, 0 to 1; null where nothing tells it: an array is always full
}

type dropView struct {
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
}

// attachmentView is an attachment record.
type attachmentView struct {
	Network     string    `json:"network"`
	ContainerID string    `json:"container_id"`
	IfName      string    `json:"ifname"`
	NetNS       string    `json:"netns,omitempty"`
	Created     time.Time `json:"created"`
	Plugins     []string  `json:"plugins"`    // whose ADD is done
	Unfinished  []string  `json:"unfinished"` // whose ADD was begun and not completed
}

// newStatusView joins what the datapath (nil: not loaded) and the records say.
func newStatusView(st *loader.Status, records []*attachments.Record) statusView {
	v := statusView{
		Version: version.String(), Probes: []probeView{}, Devices: []deviceView{}, UnhandledLinks: []unhandledView{},
		HostAddresses: []hostAddressView{}, Maps: []mapView{}, Drops: []dropView{}, Attachments: []attachmentView{},
		Choices: []choiceView{}, UsedBy: newUsedBy(records), NoNetkit: doctor.VethsForNetkit(records),
	}
	for _, r := range records {
		if r.Corrupt {
			v.UnreadableFiles++
			continue
		}
		v.Attachments = append(v.Attachments, newAttachmentView(r))
	}
	if st != nil {
		v.fill(st)
	}
	return v
}

// decided says that it is known what was decided: the record of it lies in the run directory, which an operator may empty.
func decided(st *loader.Status) bool { return st.Config.FastPath != "" }

func (v *statusView) fill(st *loader.Status) {
	v.Loaded = true
	v.Backend, v.Reason, v.Decided, v.Kernel = st.Backend, st.Reason, st.Decided, st.Kernel
	v.Build, v.PinPath = st.Build, st.PinPath
	v.AttachUplinks, v.AttachPods = st.Attach.Uplinks, st.Attach.Pods
	if decided(st) {
		v.Config = &configView{st.Config.FastPath, st.Config.RelearnSeconds, st.Config.AntiSpoof, st.Config.AdmitMark, append([]string{}, st.Config.SNATPorts...)}
	}
	v.Endpoints = len(st.Endpoints)
	for _, p := range st.Probes {
		v.Probes = append(v.Probes, probeView{p.Name, string(p.Answer), p.Reason, p.Consequence, p.Required})
	}
	for _, d := range st.Devices {
		dv := deviceView{Name: d.Name, Ifindex: d.Ifindex, Role: d.Role, Source4: d.Source4, Source6: d.Source6, Programs: []programView{}}
		for _, p := range d.Programs {
			dv.Programs = append(dv.Programs, programView{p.Name, p.Hook, p.How, p.ID, p.OK})
		}
		v.Devices = append(v.Devices, dv)
	}
	v.Local = &localView{Cgroup: st.Local.Cgroup, Attached: st.Local.Attached, Reason: st.Local.Reason, Programs: []programView{}}
	for _, p := range st.Local.Programs {
		v.Local.Programs = append(v.Local.Programs, programView{p.Name, p.Hook, p.How, p.ID, p.OK})
	}
	for _, s := range st.Skipped {
		v.UnhandledLinks = append(v.UnhandledLinks, unhandledView{s.Name, s.Ifindex, s.Why})
	}
	for _, h := range st.HostAddresses {
		v.HostAddresses = append(v.HostAddresses, hostAddressView{h.Addr, h.Ifindex})
	}
	for _, m := range st.Maps {
		mv := mapView{Name: m.Name, Type: m.Type, ID: m.ID, Entries: m.Entries, InUse: m.InUse, Max: m.Max}
		if fill, ok := m.Fill(); ok {
			mv.Fill = &fill
		}
		v.Maps = append(v.Maps, mv)
	}
	for _, d := range st.Drops {
		v.Drops = append(v.Drops, dropView{d.Reason, d.Packets})
	}
}

func newAttachmentView(r *attachments.Record) attachmentView {
	v := attachmentView{
		Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName, NetNS: r.NetNS, Created: r.Created,
		Plugins: []string{}, Unfinished: []string{},
	}
	for name, s := range r.Plugins {
		if s.State == attachments.StateDone {
			v.Plugins = append(v.Plugins, name)
		} else {
			v.Unfinished = append(v.Unfinished, name)
		}
	}
	slices.Sort(v.Plugins)
	slices.Sort(v.Unfinished)
	return v
}
