// SPDX-License-Identifier: Apache-2.0

// Package addrhistory records which pod took and released which address, and checks that some order of these steps, each at
// one moment of its call, gives no address to two pods (linearizability, by porcupine).
//
// Tests of cluster-wide addresses use it. It must not know how addresses are given.
package addrhistory

import (
	"net/netip"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// History is the calls of all nodes. The zero value is an empty one, and time is the clock's.
type History struct {
	// Now is the time of a call or an answer, in any unit; nil: the clock's. Later is larger or equal.
	Now func() int64

	mu  sync.Mutex
	ops []porcupine.Operation
}

type step struct {
	take bool
	addr netip.Addr
	pod  string
}

// Time returns the present, for the begin of a call.
func (h *History) Time() int64 {
	if h.Now != nil {
		return h.Now()
	}
	return time.Now().UnixNano()
}

// Took records that a pod got an address by a call that began then and ends now. A call that gave none is not recorded.
func (h *History) Took(a netip.Addr, pod string, begin int64) { h.add(step{true, a, pod}, begin) }

// Released records that a pod's address became free at some moment between then and now.
func (h *History) Released(a netip.Addr, pod string, begin int64) { h.add(step{false, a, pod}, begin) }

func (h *History) add(s step, begin int64) {
	end := h.Time()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{Input: s, Call: begin, Return: end})
}

// Len returns how many steps there are.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// OK reports whether there is such an order. It gives up after the limit, and then reports false.
func (h *History) OK(limit time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return porcupine.CheckOperationsTimeout(model, h.ops, limit) == porcupine.Ok
}

// model is one address: its state is the pod that has it.
var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		by := map[netip.Addr][]porcupine.Operation{}
		for _, o := range all {
			a := o.Input.(step).addr
			by[a] = append(by[a], o)
		}
		var out [][]porcupine.Operation
		for _, ops := range by {
			out = append(out, ops)
		}
		return out
	},
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		has, s := state.(string), input.(step)
		if s.take {
			return has == "", s.pod
		}
		return has == s.pod, ""
	},
}
