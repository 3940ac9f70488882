// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/uplinks"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

const (
	reservedPortsName = "ip_local_reserved_ports"
	reservedPortsKey  = pintree.SysctlDir + "/" + reservedPortsName
)

// Sync brings the node's addresses, uplinks and reserved ports up to date with the kernel's tables. What is right is only
// read, not written.
func (d *Datapath) Sync(ctx context.Context) error {
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	return d.syncLocked(ctx, a)
}

// recentlySynced reports whether another verb has looked at the node just now. The file's time tells: every look touches it.
func (d *Datapath) recentlySynced() bool {
	st, err := os.Stat(d.tree.Paths.Reserved)
	if err != nil {
		return false
	}
	age := time.Since(st.ModTime())
	return age >= 0 && age < d.tree.NodeScanTTL
}

// nodeKnows reports whether another verb has looked just now and has seen an endpoint's devices, should they be fresh: the gateways
// stand for the node, none of the devices is taken for an uplink, and the uplinks have the addresses that they had then.
func (d *Datapath) nodeKnows(a *attach.Attacher, devices []int, gateways []rtnl.Addr, fresh bool) (bool, error) {
	if !d.recentlySynced() {
		return false, nil
	}
	if !fresh {
		return true, nil
	}
	addrs, ups, err := d.knownNode()
	if err != nil {
		return false, err
	}
	for _, index := range devices {
		if _, is := ups[uint32(index)]; is {
			return false, nil
		}
	}
	for _, g := range gateways {
		if _, has := addrs[g.Prefix.Addr()]; !has {
			return false, nil
		}
	}
	return sameUplinks(a, addrs, ups)
}

// knownNode returns what the maps say of the node: its addresses, each with its device, and its uplinks.
func (d *Datapath) knownNode() (map[netip.Addr]uint32, map[uint32]endpoint.Sources, error) {
	addrs, err := d.hostAddrs()
	if err != nil {
		return nil, nil, err
	}
	um, err := d.tree.Pinned(pintree.MapUplinks)
	if err != nil {
		return nil, nil, err
	}
	known, err := endpoint.NewUplinks(um).All()
	if err != nil {
		return nil, nil, fmt.Errorf("known: %w", err)
	}
	return addrs, known, nil
}

// sameUplinks reports whether the uplinks have just the addresses that are known of them. The kernel picks those of a device,
// so that it does not matter how many others there are.
func sameUplinks(a *attach.Attacher, addrs map[netip.Addr]uint32, known map[uint32]endpoint.Sources) (bool, error) {
	h, err := a.Netlink()
	if err != nil {
		return false, err
	}
	left := make(map[netip.Addr]bool)
	for addr, index := range addrs {
		if _, ok := known[index]; ok {
			left[addr] = true
		}
	}
	for index, src := range known {
		has, err := h.AddrsOf(int(index), rtnl.FamilyAll)
		if errors.Is(err, rtnl.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("addresses of uplink %d: %w", index, err)
		}
		has = uplinks.FilterNodeAddrs(has)
		if !sameSources(uplinks.Sources(has, int(index)), src, addrs, index) {
			return false, nil
		}
		for _, h := range has {
			if _, has := addrs[h.Prefix.Addr()]; !has {
				return false, nil
			}
			delete(left, h.Prefix.Addr())
		}
	}
	return len(left) == 0, nil
}

// sameSources reports whether an uplink whose own addresses give now has those that it had. What it lacks it has from another
// device.
func sameSources(now, had endpoint.Sources, addrs map[netip.Addr]uint32, index uint32) bool {
	same := func(now, had netip.Addr) bool {
		return now == had || !now.IsValid() && addrs[had] != index
	}
	return same(now.V4, had.V4) && same(now.V6, had.V6)
}

// syncLocked is Sync under the writers' lock.
func (d *Datapath) syncLocked(ctx context.Context, a *attach.Attacher) error {
	return d.syncNode(ctx, a, false, 0, nil)
}

// syncPod does for an endpoint what SyncLocked does, at a cost that does not grow with the pods of the node: it looks at the node's
// own devices, at those that came since the last look, and at devices. fresh is the host veth if it was just made, else 0. Without
// a last look that it can begin with, it is SyncLocked.
func (d *Datapath) syncPod(ctx context.Context, a *attach.Attacher, fresh int, devices ...int) error {
	return d.syncNode(ctx, a, true, fresh, devices)
}

// syncNode writes what a look at the node has found into the maps: a look by key, or a full one where that gives up.
func (d *Datapath) syncNode(ctx context.Context, a *attach.Attacher, byKey bool, fresh int, devices []int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := a.Netlink()
	if err != nil {
		return err
	}
	roles, err := d.roles()
	if err != nil {
		return err
	}
	addrs, known, err := d.knownNode()
	if err != nil {
		return err
	}
	var n *uplinks.Snapshot
	var m *uplinks.Memory
	before := d.readMemory()
	full := !byKey || before == nil
	if !full {
		n, m, err = uplinks.ReadByKey(h, d.tree.Config.Uplinks, roles, before, addrs, fresh, devices)
		full = errors.Is(err, uplinks.ErrNeedFull)
	}
	if full {
		n, m, err = uplinks.Read(h, d.tree.Config.Uplinks, roles, before, fresh)
	}
	if err != nil {
		return err
	}
	for _, name := range n.Missing {
		d.tree.Log.Warn("configured uplink does not exist", log.String("device", name))
	}
	gone, err := d.writeHostAddrs(addrs, n.Addrs)
	if err := errors.Join(err, d.writeUplinks(a, n, known), d.writeTunnelPorts(n.TunnelPorts, full), d.forgetSources(gone), d.writeKeptPorts()); err != nil {
		if full { // the maps may have what the file of the last look does not lead to
			err = errors.Join(err, d.dropMemory())
		}
		return err
	}
	if full {
		err = d.syncDenylist(a, n.Uplinks)
	} else {
		err = d.syncDenylistKnown(a, n.Uplinks, slices.Collect(maps.Keys(known)))
	}
	if err != nil {
		d.tree.Log.Warn("the denylist is not in force everywhere", log.Error(err))
	}
	for _, l := range n.Clients {
		d.attachClients(a, l)
	}
	if err := d.writeMemory(m); err != nil {
		return err
	}
	return d.noteSync()
}

// noteSync notes when the reserved ports were read last. Where it cannot, the next verb reads them again.
func (d *Datapath) noteSync() error {
	now := time.Now()
	if err := os.Chtimes(d.tree.Paths.Reserved, now, now); d.tree.CheckWritable() == nil {
		return err
	}
	return nil
}

// roles returns what tells the devices on the pods' side: the host veths, by their counters, and the devices packets are routed
// from, by their marks. The latter outlive their pods: a bridge that is empty for a moment does not become an uplink.
func (d *Datapath) roles() (uplinks.Roles, error) {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return uplinks.Roles{}, err
	}
	return uplinks.Roles{
		HostVeth: func(index int) bool {
			has, err := eps.Stats.Has(uint32(index))
			return has && err == nil
		},
		Routed: func(index int) bool { return pintree.Exists(d.tree.Paths.RoutedMark(index)) },
	}, nil
}

// markPodSide remembers that packets of pods are routed from index.
func (d *Datapath) markPodSide(index int) error {
	mark := d.tree.Paths.RoutedMark(index)
	if pintree.Exists(mark) {
		return nil
	}
	if err := os.MkdirAll(mark, 0o700); err != nil {
		return fmt.Errorf("mark device %d: %w", index, err)
	}
	return nil
}

// hostAddrs returns the node's addresses as the map has them.
func (d *Datapath) hostAddrs() (map[netip.Addr]uint32, error) {
	raw, err := d.tree.Pinned(pintree.MapNodeAddrs)
	if err != nil {
		return nil, err
	}
	have, err := endpoint.NewHostAddrs(raw).All()
	if err != nil {
		return nil, fmt.Errorf("node addresses: %w", err)
	}
	return have, nil
}

// writeHostAddrs makes want the set of the node's addresses, which are have: new ones first, so that none is missing at any moment.
// It returns those that have gone.
func (d *Datapath) writeHostAddrs(have, want map[netip.Addr]uint32) (gone []netip.Addr, err error) {
	raw, err := d.tree.Pinned(pintree.MapNodeAddrs)
	if err != nil {
		return nil, err
	}
	m := endpoint.NewHostAddrs(raw)
	for a, index := range want {
		if old, ok := have[a]; ok && old == index {
			continue
		}
		if err := m.Put(a, index); err != nil {
			return nil, fmt.Errorf("node address %s: %w", a, pintree.WrapFull("sl_node_addrs", err))
		}
	}
	for a := range have {
		if _, ok := want[a]; ok {
			continue
		}
		if err := m.Delete(a); err != nil {
			return gone, fmt.Errorf("node address %s: %w", a, err)
		}
		gone = append(gone, a)
	}
	return gone, nil
}

// writeUplinks makes those of n the set of uplinks, which are have, in the map and on the devices. A program hangs on a device only while the map
// has it: the entry comes first and goes last. A spare uplink with the ingress qdisc of another program, where only clsact
// could take the programs, is left out: pods lose less than by an ADD that fails. The qdisc is not touched.
func (d *Datapath) writeUplinks(a *attach.Attacher, n *uplinks.Snapshot, have map[uint32]endpoint.Sources) error {
	want := n.Uplinks
	raw, err := d.tree.Pinned(pintree.MapUplinks)
	if err != nil {
		return err
	}
	m := endpoint.NewUplinks(raw)
	var errs []error
	for index, src := range want {
		err := d.putUplink(a, m, have, index, src)
		if n.Spare[index] && errors.Is(err, attach.ErrNoEgress) {
			d.tree.Log.Warn("uplink left out: hostPorts and masquerade do not work by it", log.Int("ifindex", index), log.Error(err))
			err = m.Delete(uint32(index))
		}
		errs = append(errs, err)
		if errors.Is(err, ErrFull) { // the others would say the same
			break
		}
	}
	for index := range have {
		if _, ok := want[int(index)]; ok {
			continue
		}
		if err := a.Detach(int(index), hook.OfUplink(have[index].Bare)); err != nil {
			errs = append(errs, fmt.Errorf("uplink %d: %w", index, err))
			continue
		}
		errs = append(errs, m.Delete(index))
		d.tree.Log.Info("uplink released", log.Uint32("ifindex", index))
	}
	return errors.Join(errs...)
}

// writeTunnelPorts brings the ports of VXLAN devices into the map. A look that was not full knows nothing of devices that have gone.
func (d *Datapath) writeTunnelPorts(ports map[uint32]uint16, full bool) error {
	raw, err := d.tree.Pinned(pintree.MapTunnelPorts)
	if err != nil {
		return err
	}
	m := endpoint.NewTunnelPorts(raw)
	put := m.Add
	if full {
		put = m.Replace
	}
	if err := put(ports); err != nil {
		return fmt.Errorf("ports of VXLAN devices: %w", pintree.WrapFull(pintree.MapTunnelPorts, err))
	}
	return nil
}

func (d *Datapath) putUplink(a *attach.Attacher, m endpoint.Uplinks, have map[uint32]endpoint.Sources, index int, src endpoint.Sources) error {
	old, had := have[uint32(index)]
	if !had || old != src {
		if err := m.Put(uint32(index), src); err != nil {
			return fmt.Errorf("uplink %d: %w", index, pintree.WrapFull("sl_uplinks", err))
		}
	}
	if had {
		// Another process may have detached us, or the index may be another device by now.
		if ok, err := a.Healthy(index, hook.OfUplink(src.Bare)); ok || err != nil {
			return err
		}
	}
	err := a.Attach(index, hook.OfUplink(src.Bare), false)
	if errors.Is(err, ErrNoDevice) { // it went after we had listed it
		return m.Delete(uint32(index))
	}
	if err != nil {
		return fmt.Errorf("uplink %d: %w", index, err)
	}
	d.tree.Log.Info("uplink attached", log.Int("ifindex", index))
	return nil
}

// writeKeptPorts brings the reserved ports into the map. Reading the whole map back costs more than everything else here, so
// the text that was written last is kept beside the decision.
func (d *Datapath) writeKeptPorts() error {
	reserved, err := d.tree.Sysctl(reservedPortsName)
	if err != nil {
		return err
	}
	if last, err := os.ReadFile(d.tree.Paths.Reserved); err == nil && string(last) == reserved {
		return nil
	}
	want, err := hostport.ParseReserved(reserved)
	if err != nil {
		return fmt.Errorf("sysctl %s: %w", reservedPortsKey, err)
	}
	raw, err := d.tree.Pinned(pintree.MapReservedPorts)
	if err != nil {
		return err
	}
	if _, err := hostport.NewReservedPorts(raw).Replace(want); err != nil {
		return fmt.Errorf("reserved ports: %w", err)
	}
	if err := pintree.WriteFile(d.tree.Paths.Reserved, []byte(reserved)); err != nil && !errors.Is(err, unix.EROFS) { // the next one compares again
		return fmt.Errorf("remember reserved ports: %w", err)
	}
	return nil
}

// checkUplinks looks whether the uplinks that are known still have their programs, and their addresses stand for the node. An
// address or a device that has come since the last ADD is no difference: the next verb takes it in.
func (d *Datapath) checkUplinks(a *attach.Attacher) error {
	addrs, known, err := d.knownNode()
	if err != nil {
		return err
	}
	h, err := a.Netlink()
	if err != nil {
		return err
	}
	var errs []error
	for index, src := range known {
		l, err := h.LinkByIndex(int(index))
		if errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		errs = append(errs, err, attach.CheckHooks(a, int(index), l.Name, hook.OfUplink(src.Bare)))
		for _, s := range []netip.Addr{src.V4, src.V6} {
			if _, ok := addrs[s]; s.IsValid() && !ok {
				errs = append(errs, pintree.Differs("address %s of uplink %s is not among the node's", s, l.Name))
			}
		}
	}
	return errors.Join(errs...)
}
