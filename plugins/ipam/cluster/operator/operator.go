// SPDX-License-Identifier: Apache-2.0

// Package operator shows pools to the operator and fixes them after asking: "sluice ipam".
//
// sluice-ipam-store runs it. It must not change a pool in any other way than the plugins do.
package operator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// Cluster is what is known of pods besides the pools. etcd has none.
type Cluster interface {
	Pods(ctx context.Context) ([]Pod, error)
}

// Pod is a pod of the cluster.
type Pod struct {
	Ref       string // NAMESPACE/NAME
	Node      string
	Ended     bool // it will not run again
	Addresses []netip.Addr
}

// Tool is one run of the tool on a node.
type Tool struct {
	Store   claims.Store
	Cluster Cluster // nil: nothing is known
	Dir     string
	Node    blocks.Node
	Claimer *claims.Claimer
}

// PoolView is a pool as "pools" shows it.
type PoolView struct {
	Name    string         `json:"name"`
	Range   string         `json:"range"`
	Size    uint64         `json:"size"` // usable addresses of the whole range
	Taken   int            `json:"taken"`
	Pods    int            `json:"pods"`    // allocations of whereabouts
	Nodes   map[string]int `json:"nodes"`   // addresses that nodes have claimed
	Mirrors int            `json:"mirrors"` // entries of claims in overlapping pools
	Kept    int            `json:"kept"`    // addresses that are kept for owners which outlive their pods
	Problem string         `json:"problem,omitempty"`
}

// Pools returns all pools.
func (o *Tool) Pools(ctx context.Context) ([]PoolView, error) {
	list, err := o.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	out := []PoolView{}
	for i := range list {
		v := PoolView{Name: list[i].Name, Range: list[i].Range, Taken: len(list[i].Allocations), Nodes: map[string]int{}}
		taken, p, err := parse(&list[i])
		if err != nil {
			v.Problem = err.Error()
		} else {
			v.Size = whole(p).Size()
		}
		for _, e := range taken {
			id, node := pool.ParseNodeID(e.ID)
			switch {
			case e.IsMirror():
				v.Mirrors++
			case isHeld(e):
				v.Kept++
			case node:
				v.Nodes[id.Node]++
			default:
				v.Pods++
			}
		}
		out = append(out, v)
	}
	return out, nil
}

func isHeld(e pool.Entry) bool {
	_, ok := pool.ParseHold(e.ID)
	return ok
}

func whole(p netip.Prefix) *pool.Range {
	r := &pool.Range{CIDR: p}
	r.First, r.Last, _ = pool.Usable(p)
	return r
}

func parse(o *pool.Object) (map[uint64]pool.Entry, netip.Prefix, error) {
	p, err := o.Prefix()
	taken, terr := o.Taken()
	return taken, p, errors.Join(err, terr)
}

// AddressView is an address as "list" shows it.
type AddressView struct {
	Pool      string `json:"pool"`
	Address   string `json:"address"`
	Holder    string `json:"holder"`
	Container string `json:"container,omitempty"`
	IfName    string `json:"ifname,omitempty"`
	PodRef    string `json:"pod,omitempty"`
	State     string `json:"state"` // used, unused, claimed (by another node), kept (for an owner), mirror
}

// List returns the addresses that are taken, of one pool or of all. What a node of Sluice does with its addresses is known
// on that node.
func (o *Tool) List(ctx context.Context, only string) ([]AddressView, error) {
	list, err := o.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	out := []AddressView{}
	for i := range list {
		if only != "" && only != list[i].Name {
			continue
		}
		taken, p, err := parse(&list[i])
		if err != nil {
			return nil, err
		}
		s, err := o.state(ctx, list[i].Name)
		if err != nil {
			return nil, err
		}
		offsets := make([]uint64, 0, len(taken))
		for off := range taken {
			offsets = append(offsets, off)
		}
		slices.Sort(offsets)
		for _, off := range offsets {
			out = append(out, view(s, list[i].Name, p, off, taken[off]))
		}
	}
	return out, nil
}

func view(s *blocks.State, name string, p netip.Prefix, off uint64, e pool.Entry) AddressView {
	a, _ := pool.Addr(p, off)
	v := AddressView{Pool: name, Address: a.String(), Holder: e.Holder(), State: "used", PodRef: e.PodRef, IfName: e.IfName}
	if _, node := pool.ParseNodeID(e.ID); !node && !isHeld(e) {
		v.Container = e.ID
		return v
	}
	if owned, ok := s.Owns(off); !ok || owned.ID != e.ID {
		switch {
		case e.IsMirror():
			v.State = "mirror"
		case isHeld(e):
			v.State = "kept"
		default:
			v.State = "claimed"
		}
		return v
	}
	u, used := s.Used[off]
	if !used {
		v.State = "unused"
		return v
	}
	v.Container, v.IfName, v.PodRef = u.ContainerID, u.IfName, u.PodRef
	return v
}

// state reads the node's file of a pool; an empty one if there is none.
func (o *Tool) state(ctx context.Context, name string) (*blocks.State, error) {
	names, err := blocks.Pools(o.Dir, o.Store.Place())
	if err != nil || !slices.Contains(names, name) {
		return &blocks.State{}, err
	}
	f, err := blocks.Open(ctx, o.Dir, o.Store.Place(), name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return &f.State, nil
}

// Finding is what "check" reports.
type Finding struct {
	Kind    string `json:"kind"` // duplicate, leak, lost, edited
	Pool    string `json:"pool"`
	Address string `json:"address,omitempty"`
	Text    string `json:"text"`
	Fixed   bool   `json:"fixed"`
	Doable  bool   `json:"fixable"`

	change      *pool.Change
	reservation string
	podRef      string
}

// Check compares pools, reservations, nodes and pods. With fix it removes what is certainly a leak.
func (o *Tool) Check(ctx context.Context, fix bool) ([]Finding, error) {
	list, err := o.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	var pods []Pod
	var reservations map[string]string
	if o.Cluster != nil {
		if pods, err = o.Cluster.Pods(ctx); err == nil {
			reservations, err = o.Store.Reservations(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	x := &check{Tool: o, alive: map[string]bool{}, holders: map[string]map[netip.Addr][]string{}}
	for _, p := range pods {
		if !p.Ended {
			x.alive[p.Ref] = true
		}
	}
	for i := range list {
		if err := x.pool(ctx, &list[i]); err != nil {
			return nil, err
		}
	}
	x.duplicates()
	x.pods(list, pods)
	for name, podRef := range reservations {
		if podRef != "" && !x.alive[podRef] {
			x.found = append(x.found, Finding{Kind: "leak", Text: "reservation " + name + " is for pod " + podRef + ", which is not there", Doable: true, reservation: name, podRef: podRef})
		}
	}
	if fix {
		err = x.fix(ctx)
	}
	return x.found, err
}

type check struct {
	*Tool
	alive   map[string]bool
	holders map[string]map[netip.Addr][]string // by network, as far as names tell it
	found   []Finding
}

func (x *check) pool(ctx context.Context, p *pool.Object) error {
	taken, prefix, err := parse(p)
	if err != nil {
		x.found = append(x.found, Finding{Kind: "edited", Pool: p.Name, Text: err.Error()})
		return nil //nolint:nilerr // it is a finding
	}
	s, err := x.state(ctx, p.Name)
	if err != nil {
		return err
	}
	network := strings.TrimSuffix(p.Name, pool.Name("", "", p.Range))
	if x.holders[network] == nil {
		x.holders[network] = map[netip.Addr][]string{}
	}
	for off, e := range taken {
		a, ok := pool.Addr(prefix, off)
		if !ok {
			x.found = append(x.found, Finding{Kind: "edited", Pool: p.Name, Text: fmt.Sprintf("allocation %d is outside %s", off, p.Range)})
			continue
		}
		if !e.IsMirror() {
			x.holders[network][a] = append(x.holders[network][a], e.Holder()+" (pool "+p.Name+")")
		}
		text, doable := x.verdict(ctx, s, off, e)
		if text != "" {
			f := Finding{Kind: "leak", Pool: p.Name, Address: a.String(), Text: text, Doable: doable, change: &pool.Change{Remove: map[uint64]pool.Entry{off: e}}}
			if e.PodRef != "" {
				f.reservation, f.podRef = strings.TrimSuffix(network, "-"), e.PodRef
				f.reservation = pool.ReservationName(f.reservation, a)
			}
			x.found = append(x.found, f)
		}
	}
	for off, u := range s.Used {
		if owned, ok := s.Owns(off); !ok || taken[off].ID != owned.ID {
			a, _ := pool.Addr(prefix, off)
			x.found = append(x.found, Finding{Kind: "lost", Pool: p.Name, Address: a.String(), Text: fmt.Sprintf("container %s of this node has it, the pool has it for %s", u.ContainerID, taken[off].Holder())})
		}
	}
	return nil
}

// verdict says why an entry is a leak, and whether that is certain.
func (x *check) verdict(ctx context.Context, s *blocks.State, off uint64, e pool.Entry) (string, bool) {
	if h, ok := pool.ParseHold(e.ID); ok {
		if free, err := x.Claimer.IsFree(ctx, e); err == nil && free {
			return "nobody has it, and its owner is gone: " + e.Holder(), true
		}
		if h.Taken() && h.Node.Machine == x.Node.Machine && h.Node.Boot == x.Node.Boot && !inFile(s, off) {
			return "this node has it in this boot, and its file does not: the file was lost, or the answer is under way", false
		}
		return "", false
	}
	id, node := pool.ParseNodeID(e.ID)
	if !node {
		if x.Cluster != nil && e.PodRef != "" && !x.alive[e.PodRef] {
			return "pod " + e.PodRef + " is not there", true
		}
		return "", false
	}
	if id.Machine == x.Node.Machine {
		if id.Boot == x.Node.Boot && !id.IsMirror() && !inFile(s, off) {
			return "this node claimed it in this boot, and its file does not have it: the file was lost, or the answer is under way", false
		}
		return "", false
	}
	if dead, err := x.Claimer.IsDead(ctx, id); err == nil && dead {
		return "node " + id.Node + " is gone", true
	}
	return "", false
}

func inFile(s *blocks.State, off uint64) bool {
	for _, c := range slices.Concat(s.Claims, s.Trying, s.Giving, s.Resting) {
		if c.Has(off) {
			return true
		}
	}
	return false
}

func (x *check) duplicates() {
	for _, holders := range x.holders {
		for a, by := range holders {
			if len(by) > 1 {
				x.found = append(x.found, Finding{Kind: "duplicate", Address: a.String(), Text: strings.Join(by, " and ")})
			}
		}
	}
}

// pods looks for addresses that two pods report, and for those that no pool has for them.
func (x *check) pods(list []pool.Object, pods []Pod) {
	seen := map[netip.Addr]string{}
	for _, p := range pods {
		for _, a := range p.Addresses {
			in, taken := inPools(list, a)
			if p.Ended || in == "" {
				continue
			}
			if by, ok := seen[a]; ok && by != p.Ref {
				x.found = append(x.found, Finding{Kind: "duplicate", Pool: in, Address: a.String(), Text: "pods " + by + " and " + p.Ref + " report it"})
			}
			seen[a] = p.Ref
			if !taken {
				x.found = append(x.found, Finding{Kind: "lost", Pool: in, Address: a.String(), Text: "pod " + p.Ref + " reports it, and the pool has it free"})
			}
		}
	}
}

func inPools(list []pool.Object, a netip.Addr) (name string, taken bool) {
	for i := range list {
		all, p, err := parse(&list[i])
		if err != nil || !p.Contains(a) {
			continue
		}
		name = list[i].Name
		if off, ok := pool.Offset(p, a); ok {
			if _, ok := all[off]; ok {
				return name, true
			}
		}
	}
	return name, false
}

func (x *check) fix(ctx context.Context) error {
	var errs []error
	for i := range x.found {
		f := &x.found[i]
		if !f.Doable {
			continue
		}
		var err error
		if f.change != nil {
			_, err = x.Store.Change(ctx, f.Pool, *f.change)
		}
		if err == nil && f.reservation != "" {
			err = x.Store.Unreserve(ctx, map[string]string{f.reservation: f.podRef})
		}
		f.Fixed = err == nil
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ReleaseAddress frees one address, also if a pod has it.
func (o *Tool) ReleaseAddress(ctx context.Context, name string, a netip.Addr) (string, error) {
	p, err := o.Store.Get(ctx, name)
	if err != nil || p == nil {
		return "", errors.Join(err, fmt.Errorf("no pool %s", name))
	}
	taken, prefix, err := parse(p)
	if err != nil {
		return "", err
	}
	off, _ := pool.Offset(prefix, a)
	e, ok := taken[off]
	if !ok {
		return "", fmt.Errorf("pool %s has %s free", name, a)
	}
	_, err = o.Store.Change(ctx, name, pool.Change{Remove: map[uint64]pool.Entry{off: e}})
	return e.Holder(), err
}

// ReleaseNode frees what a node has, in all pools.
func (o *Tool) ReleaseNode(ctx context.Context, node string) (int, error) {
	list, err := o.Store.List(ctx)
	n := 0
	for i := range list {
		change := pool.Change{Remove: map[uint64]pool.Entry{}, Replace: map[uint64][2]pool.Entry{}}
		taken, _, perr := parse(&list[i])
		err = errors.Join(err, perr)
		for off, e := range taken {
			if id, ok := pool.ParseNodeID(e.ID); ok && id.Node == node {
				change.Remove[off] = e
			}
			if h, ok := pool.ParseHold(e.ID); ok && h.Node.Node == node && node != "" {
				change.Replace[off] = [2]pool.Entry{e, claims.AtRest(h)}
			}
		}
		if !change.Empty() {
			_, cerr := o.Store.Change(ctx, list[i].Name, change)
			if err = errors.Join(err, cerr); cerr == nil {
				n += len(change.Remove) + len(change.Replace)
			}
		}
	}
	return n, err
}
