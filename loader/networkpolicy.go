// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	networkpolicymap "github.com/sluice-cni/sluice/pkg/maps/networkpolicy"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

func (d *Datapath) networkPolicyTables() (t networkpolicymap.Tables, err error) {
	for _, m := range []struct {
		name string
		to   **bpfsys.Map
	}{
		{pintree.MapNPPeers, &t.Peers}, {pintree.MapNPCIDRs, &t.CIDRs}, {pintree.MapNPServices, &t.Services}, {pintree.MapNPBits, &t.Bits}, {pintree.MapNPSets, &t.Sets},
		{pintree.MapNPPods, &t.Pods}, {pintree.MapNPNamespaces, &t.Namespaces},
	} {
		if *m.to, err = d.tree.Pinned(m.name); err != nil {
			return t, err
		}
	}
	return t, nil
}

// NetworkPolicyPod is a pod as the runtime names it. The zero value is under no NetworkPolicy.
type NetworkPolicyPod struct{ UID, Namespace string }

// networkPolicyOf returns what is known of pod; nil if nothing restricts it. A pod of which nothing is known is open if no policy can select
// it, and closed otherwise.
func (d *Datapath) networkPolicyOf(pod NetworkPolicyPod) (*networkpolicymap.Policy, error) {
	if pod.UID == "" {
		return nil, nil
	}
	t, err := d.networkPolicyTables()
	if err != nil {
		return nil, err
	}
	known, ok, err := t.Pod(networkpolicy.PodKey(pod.UID))
	if err != nil {
		return nil, fmt.Errorf("sl_np_pods: %w", err)
	}
	if ok {
		return networkPolicy(t, known)
	}
	open, err := t.HasNamespace(networkpolicy.NamespaceKey(pod.Namespace))
	if err != nil {
		return nil, fmt.Errorf("sl_np_open_ns: %w", err)
	}
	if open {
		return nil, nil
	}
	return networkpolicymap.Closed(), nil
}

// networkPolicy returns the policy of a pod; nil if nothing restricts it. A set that is not there closes.
func networkPolicy(t networkpolicymap.Tables, p networkpolicymap.Pod) (*networkpolicymap.Policy, error) {
	switch p.Set {
	case networkpolicy.OpenSet:
		return nil, nil
	case networkpolicy.ClosedSet:
		return networkpolicymap.Closed(), nil
	}
	set, ok, err := t.Set(p.Generation, p.Set)
	switch {
	case err != nil:
		return nil, fmt.Errorf("sl_np_sets: %w", err)
	case !ok:
		return networkpolicymap.Closed(), nil
	case set.IngressCount == 0 && set.EgressCount == 0:
		return nil, nil
	}
	return set, nil
}

// noteDevice writes down whose the device under key is, so that the agent finds it when the pod's policies change.
func (v policyMaps) noteDevice(key uint32, owner uint64, group uint32, pod NetworkPolicyPod, p *networkpolicymap.Policy, back *rollback.Stack) error {
	old, had, err := v.noted.Get(key)
	if err != nil {
		return fmt.Errorf("sl_np_devices: %w", err)
	}
	if pod.UID == "" && !had {
		return nil
	}
	back.Push("device under NetworkPolicy", func(context.Context) error {
		if had {
			return v.noted.Put(key, &old)
		}
		return v.noted.Delete(key)
	})
	if pod.UID == "" {
		return v.noted.Delete(key)
	}
	d := &networkpolicymap.Device{Pod: networkpolicy.PodKey(pod.UID), Owner: owner, Group: group, Since: closedSince(p)}
	if err := v.noted.Put(key, d); err != nil {
		return pintree.WrapFull(pintree.MapNPDevices, err)
	}
	return nil
}

// closedSince is now if p is that of pods of which nothing is known, else 0.
func closedSince(p *networkpolicymap.Policy) uint64 {
	if p == nil || networkpolicy.SetID(p.Set) != networkpolicy.ClosedSet {
		return 0
	}
	return uint64(conntrack.Now())
}

// checkDevice compares what is noted of the device under key with the pod of ref.
func (v policyMaps) checkDevice(key uint32, ref attachments.ID, pod NetworkPolicyPod) error {
	noted, had, err := v.noted.Get(key)
	switch {
	case err != nil:
		return fmt.Errorf("sl_np_devices: %w", err)
	case pod.UID == "" && had:
		return pintree.Differs("%s is under NetworkPolicy, want none", ref)
	case pod.UID != "" && (!had || noted.Owner != ref.Owner() || noted.Pod != networkpolicy.PodKey(pod.UID)):
		return pintree.Differs("%s is not under the NetworkPolicies of pod %s", ref, pod.UID)
	}
	return nil
}

// NetworkPolicyStatus is a device under NetworkPolicy.
type NetworkPolicyStatus struct {
	Owner  uint64
	Pod    uint64              // networkpolicy.PodKey of its UID
	Set    networkpolicy.SetID // OpenSet: nothing restricts it
	Closed time.Duration       // for how long nothing has been known of its pod, or its policies do not fit; 0: something is
}

// NetworkPolicies returns the devices under NetworkPolicy.
func (d *Datapath) NetworkPolicies(_ context.Context) ([]NetworkPolicyStatus, error) {
	v, err := d.policyMaps()
	if err != nil {
		return nil, err
	}
	all, err := v.noted.All()
	if err != nil {
		return nil, fmt.Errorf("sl_np_devices: %w", err)
	}
	var out []NetworkPolicyStatus
	for key, noted := range all {
		s := NetworkPolicyStatus{Owner: noted.Owner, Pod: noted.Pod}
		if noted.Since != 0 {
			s.Closed = max(1, time.Duration(uint64(conntrack.Now())-noted.Since))
		}
		under, ok, err := v.devices.Get(key)
		if err != nil {
			return nil, fmt.Errorf("sl_dev_policy: %w", err)
		}
		if ok {
			p, err := v.policies.Get(under.Policy)
			if err != nil {
				return nil, fmt.Errorf("sl_policies: %w", err)
			}
			if p.Network != nil {
				s.Set = networkpolicy.SetID(p.Network.Set)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// NetworkPolicyTables is one generation of the kernel's tables. It begins empty, beside the one in force. It is for one goroutine at a time.
type NetworkPolicyTables interface {
	// Apply makes changes in their order. A pod goes from its old set to the new one at once, with all devices it has. Connections are
	// asked again whose peers may do less than before. The error is ErrSuperseded when a later generation has begun, and ErrNotLoaded when
	// the programs have gone; after any error the tables are of no more use, and another generation has to begin.
	Apply(ctx context.Context, changes []networkpolicy.Change) error
	// Finish removes all earlier generations, and the pods and namespaces that this one does not have. It comes after the first batch,
	// which has all that there is.
	Finish(ctx context.Context) error
}

// ErrSuperseded says that another process has begun a later generation of the tables of NetworkPolicy.
var ErrSuperseded = errors.New("another process writes the tables of NetworkPolicy")

// BeginNetworkPolicy begins a generation of the tables of NetworkPolicy. Pods stay under the one before until theirs is written.
func (d *Datapath) BeginNetworkPolicy(ctx context.Context) (NetworkPolicyTables, error) {
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := d.networkPolicyTables(); err != nil {
		return nil, err
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	t := &networkPolicyTables{d: d, generation: max(1, binary.NativeEndian.Uint32(random[:]))}
	if t.mapID, err = t.pinned(); err != nil {
		return nil, err
	}
	return t, file.Write(t.note(), []byte(t.noted()), file.Options{})
}

type networkPolicyTables struct {
	d          *Datapath
	generation uint32
	mapID      uint32                  // of one of the maps
	tables     networkpolicymap.Tables // as of the last call
}

// note is the file that names the generation whose process may write.
func (t *networkPolicyTables) note() string {
	return filepath.Join(t.d.tree.RunDir, "networkpolicy-generation")
}
func (t *networkPolicyTables) noted() string { return strconv.FormatUint(uint64(t.generation), 10) }

// pinned returns the id of the map of pods that is pinned now. Handles of maps stay good when the pins go.
func (t *networkPolicyTables) pinned() (uint32, error) {
	m, err := bpfsys.OpenMap(t.d.tree.Paths.MapPin(pintree.MapNPPods))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: no map %s", ErrNotLoaded, pintree.MapNPPods)
	}
	if err != nil {
		return 0, fmt.Errorf("open map %s: %w", pintree.MapNPPods, err)
	}
	return m.ID(), m.Close()
}

// current fails if another process has begun a later generation, or if the maps are others.
func (t *networkPolicyTables) current() (err error) {
	if t.tables, err = t.d.networkPolicyTables(); err != nil {
		return err
	}
	id, err := t.pinned()
	if err != nil {
		return err
	}
	if id != t.mapID {
		return fmt.Errorf("%w: there are other maps now", ErrNotLoaded)
	}
	noted, err := file.Read(t.note())
	if err != nil {
		return err
	}
	if string(noted) != t.noted() {
		return ErrSuperseded
	}
	return nil
}

// lock takes the writers' lock, if the tables may still be written.
func (t *networkPolicyTables) lock(ctx context.Context) (unlock func(), err error) {
	unlock, err = t.d.tree.Writer(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.current(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (t *networkPolicyTables) Apply(ctx context.Context, changes []networkpolicy.Change) error {
	unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s := &switcher{d: t.d, tables: t.tables}
	lost := map[netip.Addr]bool{}
	for _, c := range changes {
		switch c := c.(type) {
		case networkpolicy.WritePod:
			err = s.write(c.UID, networkpolicymap.Pod{Set: c.Set, Generation: t.generation})
		case networkpolicy.WritePeer:
			if c.Loses {
				lost[c.Addr.Unmap()] = true
			}
			err = t.tables.PutPeer(t.generation, c.Addr, c.Class, c.Owner)
		case networkpolicy.DeletePeer:
			if c.Loses {
				lost[c.Addr.Unmap()] = true
			}
			err = t.tables.DeletePeer(t.generation, c.Addr, c.Owner)
		default:
			err = t.write(c)
		}
		if err != nil {
			return fmt.Errorf("NetworkPolicy: %w", err)
		}
	}
	return t.d.askAgain(lost)
}

// write makes a change that is about no connection.
func (t *networkPolicyTables) write(c networkpolicy.Change) error {
	switch c := c.(type) {
	case networkpolicy.WriteCIDR:
		return pintree.WrapFull(pintree.MapNPCIDRs, t.tables.PutCIDR(t.generation, c.Prefix, c.Class))
	case networkpolicy.DeleteCIDR:
		return t.tables.DeleteCIDR(t.generation, c.Prefix)
	case networkpolicy.WriteService:
		return pintree.WrapFull(pintree.MapNPServices, t.tables.PutService(t.generation, c.Prefix))
	case networkpolicy.DeleteService:
		return t.tables.DeleteService(t.generation, c.Prefix)
	case networkpolicy.WriteBits:
		return pintree.WrapFull(pintree.MapNPBits, t.tables.PutBits(t.generation, c.Class, c.Index, c.Bits))
	case networkpolicy.DeleteBits:
		return t.tables.DeleteBits(t.generation, c.Class, c.Chunks)
	case networkpolicy.WriteSet:
		p, err := networkpolicymap.NewPolicy(t.generation, c.ID, c.Segments)
		if err != nil {
			return err
		}
		return pintree.WrapFull(pintree.MapNPSets, t.tables.PutSet(p))
	case networkpolicy.DeleteSet:
		return t.tables.DeleteSet(t.generation, c.ID)
	case networkpolicy.DeletePod:
		return t.tables.DeletePod(networkpolicy.PodKey(c.UID))
	case networkpolicy.WriteNamespace:
		return pintree.WrapFull(pintree.MapNPNamespaces, t.tables.PutNamespace(t.generation, networkpolicy.NamespaceKey(c.Name)))
	case networkpolicy.DeleteNamespace:
		return t.tables.DeleteNamespace(networkpolicy.NamespaceKey(c.Name))
	}
	return fmt.Errorf("change %T is unknown", c)
}

func (t *networkPolicyTables) Finish(ctx context.Context) error {
	unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := t.d.policyMaps()
	if err != nil {
		return err
	}
	return errors.Join(t.tables.Forget(t.generation), v.forget())
}

// EndNetworkPolicy takes all devices from under NetworkPolicy, and empties the tables. No process that has begun a generation goes on
// writing it. A node without programs, or without such devices, needs nothing.
func (d *Datapath) EndNetworkPolicy(ctx context.Context) error {
	v, err := d.policyMaps()
	if err != nil {
		return pintree.IgnoreNotLoaded(err)
	}
	if noted, err := v.noted.All(); err != nil || len(noted) == 0 {
		return err
	}
	begun, err := d.BeginNetworkPolicy(ctx)
	if err != nil {
		return err
	}
	t := begun.(*networkPolicyTables)
	unlock, err := t.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s := &switcher{d: d, tables: t.tables}
	if err := s.read(); err != nil {
		return err
	}
	for key := range s.noted {
		if err := errors.Join(s.change(key, networkpolicymap.Pod{Set: networkpolicy.OpenSet}), s.v.noted.Delete(key)); err != nil {
			return err
		}
	}
	return errors.Join(t.tables.Forget(t.generation), s.v.forget())
}

// switcher puts the devices of pods under other policies. It reads the node's devices and addresses once for all pods of a batch.
type switcher struct {
	d       *Datapath
	tables  networkpolicymap.Tables
	v       policyMaps
	devices map[uint64][]uint32 // by pod
	noted   map[uint32]networkpolicymap.Device
	addrs   map[uint32][]endpointEntry // by host veth
	eps     pintree.EndpointMaps
}

// write notes what is known of a pod, and puts its devices under that.
func (s *switcher) write(uid string, p networkpolicymap.Pod) error {
	key := networkpolicy.PodKey(uid)
	if err := s.tables.PutPod(key, p); err != nil {
		return pintree.WrapFull(pintree.MapNPPods, err)
	}
	if s.devices == nil {
		if err := s.read(); err != nil {
			return err
		}
	}
	for _, dev := range s.devices[key] {
		if err := s.change(dev, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *switcher) read() (err error) {
	s.devices, s.addrs = map[uint64][]uint32{}, map[uint32][]endpointEntry{}
	if s.v, err = s.d.policyMaps(); err != nil {
		return err
	}
	if s.noted, err = s.v.noted.All(); err != nil {
		return fmt.Errorf("sl_np_devices: %w", err)
	}
	for key, d := range s.noted {
		s.devices[d.Pod] = append(s.devices[d.Pod], key)
	}
	if s.eps, err = s.d.tree.EndpointMaps(); err != nil {
		return err
	}
	return s.eps.Addrs.Each(func(a netip.Addr, v *endpoint.Value) bool {
		s.addrs[v.Ifindex] = append(s.addrs[v.Ifindex], endpointEntry{a, *v})
		return true
	})
}

// change puts one device under the NetworkPolicies of p, beside its rules.
func (s *switcher) change(key uint32, p networkpolicymap.Pod) (err error) {
	var want policymap.Policy
	now, policed, err := s.v.devices.Get(key)
	if err != nil {
		return fmt.Errorf("sl_dev_policy: %w", err)
	}
	if policed {
		if want, err = s.v.policies.Get(now.Policy); err != nil {
			return fmt.Errorf("sl_policies: %w", err)
		}
	}
	if want.Network, err = networkPolicy(s.tables, p); err != nil {
		return err
	}
	noted := s.noted[key]
	var back rollback.Stack
	defer back.Rollback(context.Background(), &err)
	id, err := s.v.id(want, &back)
	if err != nil {
		return err
	}
	if err := s.v.police(key, noted.Owner, noted.Group, id, want, &back); err != nil {
		return err
	}
	for _, e := range s.addrs[key] {
		if e.v.Owner != noted.Owner || e.v.Policy == id {
			continue
		}
		e.v.Policy = id
		if err := s.eps.Addrs.Put(e.addr, &e.v); err != nil {
			return fmt.Errorf("endpoint %s: %w", e.addr, err)
		}
	}
	since := closedSince(want.Network)
	if since != 0 && noted.Since != 0 { // it has been closed all the time
		since = noted.Since
	}
	noted.Since = since
	return s.v.noted.Put(key, &noted)
}

// askAgain has the policies asked about the connections of pods with addrs as soon as another packet of them comes.
func (d *Datapath) askAgain(addrs map[netip.Addr]bool) error {
	if len(addrs) == 0 {
		return nil
	}
	_, err := d.flushRecords(func(m conntrack.Map, _ []conntrack.Map) (int, error) {
		return m.AskAgain(func(r *conntrack.Record) bool {
			return addrs[r.Remote.Addr()] || r.Other.Remote.IsValid() && addrs[r.Other.Remote.Addr()]
		})
	})
	return err
}
