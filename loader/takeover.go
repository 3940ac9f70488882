// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// waitingPort is a published port that another owner has taken over. It comes back when that one goes, as the rules of netfilter
// tables do that were below those of a later pod.
type waitingPort struct {
	Key   hostport.Key   `json:"key"`
	Value hostport.Value `json:"value"`
}

// portChange is a change of the published ports under the writers' lock. Who waits is in a file, the latest last. After a kill
// between file and map it may have one that is published; its owner's next change mends that.
type portChange struct {
	d       *Datapath
	m       hostport.Map
	waiting rows[waitingPort]
	gone    []hostport.Value // what is replaced or taken away
}

// changePorts begins one.
func (d *Datapath) changePorts(m hostport.Map) (*portChange, error) {
	waiting, err := readRows[waitingPort](d, d.paths.waiting, "ports taken over")
	return &portChange{d: d, m: m, waiting: waiting}, err
}

// forget drops who waits.
func (c *portChange) forget(drop func(waitingPort) bool) error {
	now := slices.Clone(c.waiting.all)
	return c.waiting.set(slices.DeleteFunc(now, func(w waitingPort) bool {
		if !drop(w) {
			return false
		}
		c.gone = append(c.gone, w.Value)
		return true
	}))
}

// put makes v the value of a key. Another owner waits from then on. One that says the same already keeps its generation, so
// that its flows live on.
func (c *portChange) put(k hostport.Key, v hostport.Value, back *rollback.Stack) error {
	old, had, err := c.m.Get(k)
	if err != nil {
		return fmt.Errorf("published port %s: %w", k, err)
	}
	same := old
	same.Gen = v.Gen
	if had && same == v {
		return nil
	}
	if had && old.Owner != v.Owner {
		if err := c.waiting.set(append(slices.Clone(c.waiting.all), waitingPort{k, old})); err != nil {
			return err
		}
	}
	back.Push("published port "+k.String(), func(context.Context) error {
		if had {
			return c.m.Put(k, old)
		}
		return c.m.Delete(k)
	})
	if err := c.m.Put(k, v); err != nil {
		return fmt.Errorf("published port %s: %w", k, full("sl_hostports", err))
	}
	if had {
		c.gone = append(c.gone, old)
	}
	return nil
}

// withdraw takes an entry away: the last who waits for it has it again.
func (c *portChange) withdraw(k hostport.Key, v hostport.Value) error {
	next, rest, err := c.heir(k, v.Owner)
	switch {
	case err != nil:
	case next == nil:
		err = c.m.Delete(k)
	default:
		next.Gen = uint64(conntrack.Now())
		err = c.m.Put(k, *next)
	}
	if err != nil {
		return fmt.Errorf("published port %s: %w", k, err)
	}
	c.gone = append(c.gone, v)
	return c.waiting.set(rest)
}

// heir returns the last who waits for a key and is there still, or nil, and who waits without that one. A pod whose DEL never
// came may have left its address to another one, which has published nothing. Who gives the key up may wait for it too, where
// the list could not be written.
func (c *portChange) heir(k hostport.Key, but uint64) (next *hostport.Value, rest []waitingPort, err error) {
	rest = slices.Clone(c.waiting.all)
	for i := len(rest) - 1; i >= 0; i-- {
		w := rest[i]
		if w.Key != k || w.Value.Owner == but {
			continue
		}
		lives, err := c.d.lives(w.Value.Owner, w.Value.PodIP)
		if err != nil {
			return nil, nil, err
		}
		rest = slices.Delete(rest, i, i+1)
		if lives {
			return &w.Value, rest, nil
		}
		c.gone = append(c.gone, w.Value)
	}
	return nil, rest, nil
}

// lives reports whether an owner has its address, and its device has not gone.
func (d *Datapath) lives(owner uint64, addr netip.Addr) (bool, error) {
	eps, err := d.endpoints()
	if err != nil {
		return false, err
	}
	ep, ok, err := eps.addrs.Get(addr)
	if err != nil {
		return false, fmt.Errorf("endpoint %s: %w", addr, err)
	}
	if !ok || ep.Owner != owner {
		return false, nil
	}
	a := d.attacher("")
	defer a.Close()
	return !a.gone(int(ep.Ifindex)), nil
}

// end does what follows a change.
func (c *portChange) end() error {
	c.d.dropPeers(c.gone)
	return c.sweepSources()
}

// sweepSources removes lists that no entry names any more, when one of those that are gone may have been the last.
func (c *portChange) sweepSources() error {
	if !slices.ContainsFunc(c.gone, func(v hostport.Value) bool { return v.Sources != 0 }) {
		return nil
	}
	used := make(map[uint64]bool)
	for _, w := range c.waiting.all {
		used[w.Value.Sources] = true
	}
	err := c.m.Each(func(_ hostport.Key, v hostport.Value) bool {
		used[v.Sources] = true
		return true
	})
	if err != nil {
		return fmt.Errorf("published ports: %w", err)
	}
	raw, err := c.d.pinned(mapHostPortAllowlist)
	if err != nil {
		return ifLoaded(err)
	}
	if err := hostport.NewSources(raw).Keep(used); err != nil {
		return fmt.Errorf("sources of published ports: %w", err)
	}
	return nil
}
