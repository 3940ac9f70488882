// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// Map is what a change needs of the map of hostPorts.
type Map interface {
	Get(hostport.Key) (hostport.Entry, bool, error)
	Put(hostport.Entry) error
	Delete(hostport.Key) error
	Each(func(hostport.Entry) bool) error // reads the whole map
}

// waiter is a hostPort that another owner has taken over. It comes back when that one goes, as a netfilter rule does that was below
// the one of a later pod.
type waiter struct{ hostport.Entry }

func (w waiter) equal(o waiter) bool { return w.Entry.Equal(o.Entry) }

// waiterFile is a waiter as the file has it. The format stays: the file outlives an upgrade.
type waiterFile struct {
	Key struct {
		HostIP netip.Addr
		Proto  uint8
		Port   uint16
	} `json:"key"`
	Value struct {
		PodIP                        netip.Addr
		PodPort                      uint16
		Owner                        uint64
		Gen                          uint64
		Flags                        uint16 // enum sl_hostport_flag
		Sources                      uint64 // the allowlist
		Source, Dest                 netip.Prefix
		In                           uint32 // ifindex
		NotSource, NotDest, NotIndex bool
	} `json:"value"`
}

const (
	waiterSNAT    = uint16(bpfgen.TypesSlHostportFlagSL_HP_SNAT)
	waiterMasqAll = uint16(bpfgen.TypesSlHostportFlagSL_HP_MASQ_ALL)
)

// MarshalJSON writes w in the format of the file.
func (w waiter) MarshalJSON() ([]byte, error) {
	var f waiterFile
	f.Key.HostIP, f.Key.Proto, f.Key.Port = w.HostIP, w.Proto, w.Port
	v, c := &f.Value, w.Conditions
	v.PodIP, v.PodPort, v.Owner, v.Gen, v.Sources = w.PodIP, w.PodPort, w.Owner, w.Generation, w.Allowlist
	v.Source, v.Dest, v.In, v.NotSource, v.NotDest, v.NotIndex = c.Source, c.Dest, c.InIfindex, c.NotSource, c.NotDest, c.NotIn
	if w.SNAT {
		v.Flags |= waiterSNAT
	}
	if w.MasqAll {
		v.Flags |= waiterMasqAll
	}
	return json.Marshal(f)
}

// UnmarshalJSON undoes MarshalJSON.
func (w *waiter) UnmarshalJSON(raw []byte) error {
	var f waiterFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return err
	}
	v := f.Value
	w.Entry = hostport.Entry{
		Mapping: hostport.Mapping{
			Key:   hostport.Key{HostIP: f.Key.HostIP, Proto: f.Key.Proto, Port: f.Key.Port},
			PodIP: v.PodIP, PodPort: v.PodPort, SNAT: v.Flags&waiterSNAT != 0, MasqAll: v.Flags&waiterMasqAll != 0,
			Conditions: hostport.Conditions{
				Source: v.Source, Dest: v.Dest, InIfindex: v.In, NotSource: v.NotSource, NotDest: v.NotDest, NotIn: v.NotIndex,
			},
		},
		Owner: v.Owner, Generation: v.Gen, Allowlist: v.Sources,
	}
	return nil
}

// portChange is a change of the hostPorts under the writers' lock.
//
// The waiting list is a file, the one that comes next last. After a kill between file and map it may have an entry that is in the map
// too. The next change of its owner repairs that.
type portChange struct {
	d       Ports
	m       Map
	behind  []func() []uint64 // the owners that keep what they have
	waiting pintree.JSONList[waiter]
	gone    []hostport.Entry // replaced or removed
}

// changePorts begins a change.
func (hp Ports) changePorts(m Map, behind ...func() []uint64) (*portChange, error) {
	waiting, err := hp.waitlist()
	return &portChange{d: hp, m: m, behind: behind, waiting: waiting}, err
}

func (hp Ports) waitlist() (pintree.JSONList[waiter], error) {
	return pintree.ReadList(hp.Tree, hp.Paths.Waiting, "ports taken over", waiter.equal)
}

// ownersOf calls the functions.
func ownersOf(behind []func() []uint64) (owners []uint64) {
	for _, f := range behind {
		owners = append(owners, f()...)
	}
	return owners
}

// indexOf returns the place of the first of these owners who waits for a key, -1 for none.
func indexOf(list []waiter, k hostport.Key, owners ...uint64) int {
	return slices.IndexFunc(list, func(w waiter) bool { return w.Key == k && slices.Contains(owners, w.Owner) })
}

// forget removes the waiters that drop accepts.
func (c *portChange) forget(drop func(waiter) bool) error {
	now := slices.Clone(c.waiting.All)
	return c.waiting.Set(slices.DeleteFunc(now, func(w waiter) bool {
		if !drop(w) {
			return false
		}
		c.gone = append(c.gone, w.Entry)
		return true
	}))
}

// put writes e. If another owner has the key, that one waits from then on. An entry that says the same already keeps its generation, so
// that its connections live on.
func (c *portChange) put(e hostport.Entry, rb *rollback.Stack) error {
	old, had, err := c.m.Get(e.Key)
	if err != nil {
		return fmt.Errorf("published port %s: %w", e.Key, err)
	}
	same := old
	same.Generation = e.Generation
	if had && same.Equal(e) {
		return nil
	}
	if had && old.Owner != e.Owner {
		if waits, err := c.waitBehind(old, e); waits || err != nil {
			return err
		}
		if err := c.waiting.Set(append(slices.Clone(c.waiting.All), waiter{old})); err != nil {
			return err
		}
	}
	rb.Push("published port "+e.Key.String(), func(context.Context) error {
		if had {
			return c.m.Put(old)
		}
		return c.m.Delete(e.Key)
	})
	if err := c.m.Put(e); err != nil {
		return fmt.Errorf("published port %s: %w", e.Key, pintree.WrapFull("sl_hostports", err))
	}
	if had {
		c.gone = append(c.gone, old)
	}
	return nil
}

// waitBehind puts e on the waiting list if an attachment of behind has its key, or waits for it: it comes after the last of those, as a
// netfilter rule does that is below theirs. A holder whose device has gone keeps nothing.
func (c *portChange) waitBehind(holder, e hostport.Entry) (bool, error) {
	owners := ownersOf(c.behind)
	place := indexOf(c.waiting.All, e.Key, owners...)
	if place < 0 {
		if !slices.Contains(owners, holder.Owner) {
			return false, nil
		}
		if alive, err := c.d.alive(holder); !alive || err != nil {
			return false, err
		}
		place = len(c.waiting.All)
	}
	return true, c.waiting.Set(slices.Insert(slices.Clone(c.waiting.All), place, waiter{e}))
}

// withdraw removes e from the map: the last who waits for its key has it again.
func (c *portChange) withdraw(e hostport.Entry) error {
	next, rest, err := c.nextWaiter(e.Key, e.Owner)
	switch {
	case err != nil:
	case next == nil:
		err = c.m.Delete(e.Key)
	default:
		next.Generation = uint64(conntrack.Now())
		err = c.m.Put(*next)
	}
	if err != nil {
		return fmt.Errorf("published port %s: %w", e.Key, err)
	}
	c.gone = append(c.gone, e)
	return c.waiting.Set(rest)
}

// nextWaiter returns the last who waits for a key and is alive, or nil, and the list without that one. A pod whose DEL never came may
// have left its address to another pod, which has no such hostPort. The owner who gives the key up may wait for it too, where a kill
// kept it from writing the list: it is left out.
func (c *portChange) nextWaiter(k hostport.Key, leaving uint64) (next *hostport.Entry, rest []waiter, err error) {
	rest = slices.Clone(c.waiting.All)
	for i := len(rest) - 1; i >= 0; i-- {
		w := rest[i]
		if w.Key != k || w.Owner == leaving {
			continue
		}
		alive, err := c.d.alive(w.Entry)
		if err != nil {
			return nil, nil, err
		}
		rest = slices.Delete(rest, i, i+1)
		if alive {
			return &w.Entry, rest, nil
		}
		c.gone = append(c.gone, w.Entry)
	}
	return nil, rest, nil
}

// alive reports whether the owner of e has its address still, on a device that exists. A claim has no endpoint: GC removes it when its
// attachment has gone.
func (hp Ports) alive(e hostport.Entry) (bool, error) {
	if e.IsClaim() {
		return true, nil
	}
	eps, err := hp.EndpointMaps()
	if err != nil {
		return false, err
	}
	ep, ok, err := eps.Addrs.Get(e.PodIP)
	if err != nil {
		return false, fmt.Errorf("endpoint %s: %w", e.PodIP, err)
	}
	if !ok || ep.Owner != e.Owner {
		return false, nil
	}
	a := attach.NewAttacher(hp.Tree, "")
	defer a.Close()
	return !a.Gone(int(ep.Ifindex)), nil
}

// end does what follows a change.
func (c *portChange) end() error {
	c.d.dropPeers(c.gone)
	return nil
}

// dropUnusedLists removes the lists that no entry, no waiter and none of keep names.
func (c *portChange) dropUnusedLists(keep ...hostport.Entry) error {
	used := make(map[uint64]bool)
	for _, e := range keep {
		used[e.Allowlist] = true
	}
	for _, w := range c.waiting.All {
		used[w.Allowlist] = true
	}
	err := c.m.Each(func(e hostport.Entry) bool {
		used[e.Allowlist] = true
		return true
	})
	if err != nil {
		return fmt.Errorf("published ports: %w", err)
	}
	lists, err := c.d.allowlists()
	if err != nil {
		return pintree.IgnoreNotLoaded(err)
	}
	if err := lists.Keep(used); err != nil {
		return fmt.Errorf("sources of published ports: %w", err)
	}
	return nil
}
