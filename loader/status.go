// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	denymap "github.com/sluice-cni/sluice/pkg/maps/denylist"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/maps/socklb"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// decision is what was decided, the rest of Status empty. ErrNotLoaded: nothing was decided since boot.
func (d *Datapath) decision() (*Status, error) {
	st, err := programs.ReadDecision(d.tree)
	if err != nil {
		return nil, fmt.Errorf("%w: no decision: %w", ErrNotLoaded, err)
	}
	return &Status{
		Backend: st.Backend, Reason: st.Reason, Decided: st.Decided, Kernel: st.Kernel, Build: st.Build,
		PinPath: d.tree.Paths.Dir, Attach: st.Attach, Probes: st.Probes, Config: st.Config,
	}, nil
}

// Status describes the datapath as it is now. Counting the entries of the flow tables takes most of its time.
func (d *Datapath) Status(ctx context.Context) (*Status, error) { return d.StatusCounted(ctx, nil) }

// StatusCounted is Status, with the use of maps that a walk has counted before (FlowFilter.Counted), by the names of the maps.
func (d *Datapath) StatusCounted(ctx context.Context, counted map[string]conntrack.Use) (*Status, error) {
	s, err := d.decision()
	if errors.Is(err, ErrNotLoaded) { // the run directory was emptied: what is pinned still tells the rest
		s, err = &Status{Backend: "ebpf", Reason: "the record of the decision is gone", Kernel: bpfsys.KernelRelease(), PinPath: d.tree.Paths.Dir}, nil
	}
	if err != nil {
		return nil, err
	}
	if id, ok := d.tree.Paths.Committed(); ok {
		s.Build = id
	}
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if s.Endpoints, s.Total, err = d.endpointStatus(); err != nil {
		return nil, err
	}
	if s.Runs, err = programs.Runs(d.tree); err != nil {
		return nil, err
	}
	if s.Local, err = attach.ReadLocalStatus(d.tree); err != nil {
		return nil, err
	}
	if err := errors.Join(d.deviceStatus(s, h), d.mapStatus(ctx, s, counted), d.dropStatus(s)); err != nil {
		return nil, err
	}
	return s, nil
}

func (d *Datapath) deviceStatus(s *Status, h *rtnl.Handle) error {
	n, err := d.nodeStatus(h)
	if err != nil {
		return err
	}
	s.Skipped, s.Unseen, s.LostGateways, s.HostAddresses = n.Skipped, n.Unseen, n.LostGateways, n.Addresses
	return d.programStatus(s, h)
}

func (d *Datapath) programStatus(s *Status, h *rtnl.Handle) error {
	ids, err := programs.ProgramIDs(d.tree)
	if err != nil {
		return err
	}
	raw, err := d.tree.Pinned(pintree.MapUplinks)
	if err != nil {
		return err
	}
	sources, err := endpoint.NewUplinks(raw).All()
	if err != nil {
		return err
	}
	pods, uplinks, err := d.tree.AttachedDevices()
	if err != nil {
		return err
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	add := func(index int, role string, hooks []hook.Hook) error {
		dev := DeviceStatus{Ifindex: index, Role: role}
		if l, err := h.LinkByIndex(index); err == nil {
			dev.Name = l.Name
		}
		if role == roleUplink {
			dev.Source4, dev.Source6 = sources[uint32(index)].V4, sources[uint32(index)].V6
		}
		for _, hk := range hooks {
			at, err := a.At(index, hk)
			if err != nil {
				return err
			}
			dev.Programs = append(dev.Programs, ProgramStatus{
				Name: hk.Program, Hook: hk.Direction(), How: at.How, ID: at.ID, OK: at.ID != 0 && at.ID == ids[hk.Program],
			})
		}
		s.Devices = append(s.Devices, dev)
		return nil
	}
	for _, index := range slices.Sorted(maps.Keys(uplinks)) {
		if err := add(index, roleUplink, hook.OfUplink(sources[uint32(index)].Bare)); err != nil {
			return err
		}
		last := &s.Devices[len(s.Devices)-1]
		if p, ok := d.xdpStatus(h, index, ids); ok {
			last.Programs = append(last.Programs, p)
		}
	}
	hooks, err := d.podHooks(pods)
	if err != nil {
		return err
	}
	for _, index := range slices.Sorted(maps.Keys(hooks)) {
		if err := add(index, rolePod, hooks[index]); err != nil {
			return err
		}
	}
	return nil
}

// podHooks are the hooks of pods' devices, with those that have nothing but a source MAC check.
func (d *Datapath) podHooks(pods map[int]bool) (map[int][]hook.Hook, error) {
	checked, err := d.tree.MACCheckedDevices()
	hooks := make(map[int][]hook.Hook, len(pods))
	for index := range checked {
		hooks[index] = hook.OfMACCheck()
	}
	for index := range pods {
		hooks[index] = append(hooks[index], hook.OfPod()...)
	}
	return hooks, err
}

const (
	roleUplink = "uplink"
	rolePod    = "pod"
)

func (d *Datapath) mapStatus(ctx context.Context, s *Status, counted map[string]conntrack.Use) error {
	pins, err := pintree.Names(d.tree.Paths.Maps())
	if err != nil {
		return err
	}
	slices.Sort(pins)
	for _, name := range pins {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := d.tree.Pinned(name)
		if err != nil {
			return err
		}
		st := MapStatus{Name: name, Type: m.Type().String(), ID: m.ID(), Max: int(m.MaxEntries())}
		use, known := counted[name]
		if !known {
			if use, err = usage(name, m); err != nil {
				return fmt.Errorf("map %s: %w", name, err)
			}
		}
		// An index that the kernel has evicted is counted with its connection, and has no entry.
		st.Entries, st.InUse = use.Entries, min(use.Living, use.Entries)
		s.Maps = append(s.Maps, st)
	}
	return nil
}

// usage counts what is in a map.
func usage(name string, m *bpfsys.Map) (conntrack.Use, error) {
	switch name {
	case pintree.MapConntrack, pintree.MapConntrackUnassured:
		return conntrack.New(m).Use(conntrack.Now())
	}
	n, err := mapEntries(name, m)
	return conntrack.Use{Entries: n, Living: n}, err
}

func mapEntries(name string, m *bpfsys.Map) (int, error) {
	switch name {
	case pintree.MapEndpoints:
		return endpoint.New(m, cacheepoch.Epoch{}).Len()
	case pintree.MapHostPorts:
		return hostport.New(m, cacheepoch.Epoch{}).Len()
	case pintree.MapHostPortAllowlist:
		return hostport.NewAllowlists(m).Len()
	case pintree.MapSockLBConn:
		return socklb.NewConnected(m).Len()
	case pintree.MapSockLBUDP:
		return socklb.NewDatagram(m).Len()
	case pintree.MapNoMasqCIDRs:
		return endpoint.NewNoMasq(m).Len()
	case pintree.MapDenylist, pintree.MapPolicies, pintree.MapDevicePolicy:
		return firewallEntries(name, m)
	case pintree.MapEDTLimits:
		return edt.NewLimits(m).Len()
	case pintree.MapEDTCIDRs:
		return edt.NewNets(m).Len()
	case pintree.MapPodnsDevices:
		all, err := podnsmap.New(m).All()
		return len(all), err
	case pintree.MapDropEvents:
		return 0, nil // bytes, and of no reader but now
	case pintree.MapDropsByDevice:
		return drops.NewDeviceDrops(m, nil).Len()
	case pintree.MapEpStats:
		keys, err := endpoint.NewStats(m).Keys()
		return len(keys), err
	case pintree.MapNodeAddrs:
		all, err := endpoint.NewHostAddrs(m).All()
		return len(all), err
	case pintree.MapUplinks:
		all, err := endpoint.NewUplinks(m).All()
		return len(all), err
	}
	return countKeys(m)
}

// countKeys counts the entries of a map that has no view here. Arrays are always full.
func countKeys(m *bpfsys.Map) (int, error) {
	switch m.Type() {
	case bpfsys.Hash, bpfsys.LRUHash, bpfsys.PerCPUHash, bpfsys.LRUCPUHash, bpfsys.LPMTrie, bpfsys.DevMapHash:
		return bpfsys.CountKeys(m)
	}
	return int(m.MaxEntries()), nil
}

func firewallEntries(name string, m *bpfsys.Map) (int, error) {
	switch name {
	case pintree.MapDenylist:
		all, err := denymap.New(m).All()
		return len(all), err
	case pintree.MapPolicies:
		return bpfsys.CountKeys(m)
	}
	all, err := policymap.NewDevices(m).All()
	return len(all), err
}

func (d *Datapath) dropStatus(s *Status) error {
	m, err := d.tree.Pinned(pintree.MapDropReasons)
	if err != nil {
		return err
	}
	all, err := drops.NewDrops(m).All()
	if err != nil {
		return fmt.Errorf("drop counters: %w", err)
	}
	for r := drops.Reason(1); r < drops.Max; r++ {
		if n, ok := all[r]; ok {
			s.Drops = append(s.Drops, DropCount{Reason: r.String(), Packets: n.Total()})
		}
	}
	return nil
}
