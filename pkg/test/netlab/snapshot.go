// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Snapshot is everything a plugin could leave in a node, one fact a line,
// sorted. Lines start with the kind of fact:
//
//	link addr route rule neigh      devices and what hangs on them
//	qdisc filter tcx xdp            traffic control and attached programs
//	nft iptables                    netfilter, without counters and handles
//	file                            /run, /var/lib/cni, /sys/fs/bpf
//	sysctl                          forwarding and the like
//
// Facts that change by themselves (carrier, neighbour states, lifetimes,
// counters) are left out.
type Snapshot []string

// Snapshot reads the node's state. It needs ip(8) and tc(8), and reports
// netfilter rules when nft(8) is there. If a device goes
// while it reads, it begins anew.
func (n *Node) Snapshot() (s Snapshot, err error) {
	for deadline := time.Now().Add(Patient(3 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		s, err = n.snapshot()
		if err == nil || !strings.Contains(err.Error(), "Cannot find device") || time.Now().After(deadline) {
			return s, err
		}
	}
}

func (n *Node) snapshot() (Snapshot, error) {
	var s Snapshot
	err := n.Do(func() error {
		for _, part := range []func() ([]string, error){
			snapLinks, snapAddrs, snapRoutes, snapNeighs, snapQdiscs, snapFilters, snapTCX,
			snapNetfilter, snapFiles, snapSysctls,
		} {
			lines, err := part()
			if err != nil {
				return fmt.Errorf("snapshot: %w", err)
			}
			s = append(s, lines...)
		}
		return nil
	})
	slices.Sort(s)
	return s, err
}

// Without returns the snapshot less the lines that start with one of the
// prefixes, for what is meant to stay ("link cni0 ").
func (s Snapshot) Without(prefixes ...string) Snapshot {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) })
	})
}

// Grep returns the lines that contain text.
func (s Snapshot) Grep(text string) Snapshot {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool { return !strings.Contains(line, text) })
}

// String is one line per fact.
func (s Snapshot) String() string { return strings.Join(s, "\n") }

// Diff says what after has more ("+") and less ("-") than before; "" means the
// two are equal.
func Diff(before, after Snapshot) string {
	count := map[string]int{}
	for _, l := range after {
		count[l]++
	}
	for _, l := range before {
		count[l]--
	}
	var out []string
	for l, n := range count {
		for ; n > 0; n-- {
			out = append(out, "+ "+l)
		}
		for ; n < 0; n++ {
			out = append(out, "- "+l)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	return strings.Join(out, "\n")
}

// DiffSoon is Diff with what now returns, once that is equal or three seconds
// have passed: the kernel takes the devices of a dead namespace apart in its own
// time.
func DiffSoon(before Snapshot, now func() Snapshot) string {
	deadline := time.Now().Add(Patient(3 * time.Second))
	for {
		d := Diff(before, now())
		if d == "" || time.Now().After(deadline) {
			return d
		}
		time.Sleep(50 * time.Millisecond)
	}
}
