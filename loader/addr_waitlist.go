// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

// addrWaiter is an address whose entry another attachment has taken over. The other one may be of a network with the same subnet, or
// this one's DEL never came. The entry comes back with the DEL of the other one, if its device exists still.
type addrWaiter struct {
	Addr  netip.Addr     `json:"addr"`
	Value endpoint.Value `json:"value"`
}

// addrWaitlist has the waiters of a network namespace, the latest last.
type addrWaitlist struct{ jsonList[addrWaiter] }

func (d *Datapath) addrWaitlist() (*addrWaitlist, error) {
	l, err := readList(d, d.paths.displaced, "addresses taken over", func(a, b addrWaiter) bool { return a == b })
	return &addrWaitlist{l}, err
}

// take gives the address to owner: if old is another owner's entry, that one waits from then on. It returns the entry that owner had
// there itself, in the map or waiting.
func (l *addrWaitlist) take(addr netip.Addr, owner uint64, old endpoint.Value, had bool) (own endpoint.Value, found bool, err error) {
	if had && old.Owner == owner {
		return old, true, nil
	}
	var now []addrWaiter
	for _, w := range l.all {
		if w.Addr == addr && w.Value.Owner == owner {
			own, found = w.Value, true
		} else {
			now = append(now, w)
		}
	}
	if had {
		now = append(now, addrWaiter{addr, old})
	}
	return own, found, l.set(now)
}

// release takes the features f from the waiters whose owner of accepts. One without features is dropped.
func (l *addrWaitlist) release(f Feature, of func(owner uint64) bool) error {
	var now []addrWaiter
	for _, w := range l.all {
		if of(w.Value.Owner) {
			w.Value.Flags &^= uint32(f)
		}
		if w.Value.Flags != 0 {
			now = append(now, w)
		}
	}
	return l.set(now)
}

// nextWaiter takes out the last who waits for the address and whose device exists; nil when there is none.
func (l *addrWaitlist) nextWaiter(a *attacher, addr netip.Addr) (*endpoint.Value, error) {
	var found *endpoint.Value
	now := slices.Clone(l.all)
	for i := len(now) - 1; i >= 0 && found == nil; i-- {
		if now[i].Addr != addr {
			continue
		}
		if v := now[i].Value; !a.gone(int(v.Ifindex)) {
			found = &v
		}
		now = slices.Delete(now, i, i+1)
	}
	return found, l.set(now)
}
