// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// placement says which CPUs a thread may use while it measures. Left to the
// scheduler, client and server of one connection share a CPU in one run and
// not in the next, which changes the figures more than any datapath does:
//
//   - RR: both ends on one CPU. The figure is then the path itself, all of it,
//     without the wake-up of an idle CPU, which in a virtual machine takes
//     several times as long and would hide what differs between the peers.
//   - stream: both ends on one CPU too, for the same reason: on two, the data
//     goes through whatever cache the two virtual CPUs share at that moment, and
//     one path measures 10 and 35 Gbit/s within seconds. And the server comes
//     first: it reads what has arrived while that is in the cache. Left to the
//     scheduler, the client in one run fills all buffers before it, and the same
//     path has a third.
//   - CRR: no restriction; four clients and the server keep every CPU busy.
type placement struct {
	all, one unix.CPUSet
}

func newPlacement() (*placement, error) {
	p := &placement{}
	if err := unix.SchedGetaffinity(0, &p.all); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for i := 0; i < 8*len(p.all)*8 && len(cpus) < p.all.Count(); i++ {
		if p.all.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if len(cpus) == 0 {
		return nil, errors.New("no CPU to run on")
	}
	p.one.Set(cpus[len(cpus)-1])
	return p, nil
}

// use restricts the calling thread, which must be locked to its goroutine.
// It fails only when the CPU went away, and then the thread stays where it is.
func use(set *unix.CPUSet) { _ = unix.SchedSetaffinity(0, set) }

// serverSet is where the server's thread runs for a kind of connection.
func (p *placement) serverSet(kind byte) *unix.CPUSet {
	switch kind {
	case kindRR, kindStream:
		return &p.one
	default:
		return &p.all
	}
}

// first makes the calling thread, which must be locked to its goroutine, the
// first of all on its CPU, or one of many again. Without the privilege it stays
// one of many, and the figures scatter.
func first(yes bool) {
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
	if yes {
		attr.Policy, attr.Priority = unix.SCHED_FIFO, 1
	}
	_ = unix.SchedSetAttr(0, attr, 0)
}
