// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

// displaced is an address whose entry another attachment has taken over: that of a network with the same subnet, or one whose
// predecessor's DEL never came. It comes back with the DEL of the other one, if its device is there still.
type displaced struct {
	Addr  netip.Addr     `json:"addr"`
	Value endpoint.Value `json:"value"`
}

// displacements are those of a namespace, the latest last.
type displacements struct{ rows[displaced] }

func (d *Datapath) displacements() (*displacements, error) {
	r, err := readRows[displaced](d, d.paths.displaced, "addresses taken over")
	return &displacements{r}, err
}

// claim gives the address to owner: the entry of another one, old, is displaced. It returns what owner has had there itself, in the
// map or displaced.
func (l *displacements) claim(addr netip.Addr, owner uint64, old endpoint.Value, had bool) (own endpoint.Value, found bool, err error) {
	if had && old.Owner == owner {
		return old, true, nil
	}
	var now []displaced
	for _, x := range l.all {
		if x.Addr == addr && x.Value.Owner == owner {
			own, found = x.Value, true
		} else {
			now = append(now, x)
		}
	}
	if had {
		now = append(now, displaced{addr, old})
	}
	return own, found, l.set(now)
}

// release takes the features f from what is displaced of the owners that of accepts.
func (l *displacements) release(f Feature, of func(owner uint64) bool) error {
	var now []displaced
	for _, x := range l.all {
		if of(x.Value.Owner) {
			x.Value.Flags &^= uint32(f)
		}
		if x.Value.Flags != 0 {
			now = append(now, x)
		}
	}
	return l.set(now)
}

// heir takes out the last who has been displaced from the address and whose device has not gone; nil when there is none.
func (l *displacements) heir(a *attacher, addr netip.Addr) (*endpoint.Value, error) {
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
