// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// tableAge is how old a table may be: the kernel walks the entries of all namespaces for each look, and a world's trials look at once.
const tableAge = 100 * time.Millisecond

// connections is the node's connection table as it was a moment ago.
type connections struct {
	mu      sync.Mutex
	read    time.Time
	entries []e2etest.Tracked
	err     error
}

// table reads the node's connection table. A world has few entries, so it is read whole.
func (s *stage) table() ([]e2etest.Tracked, error) {
	asked := time.Now()
	s.tracked.mu.Lock()
	defer s.tracked.mu.Unlock()
	if asked.Sub(s.tracked.read) < tableAge {
		return s.tracked.entries, s.tracked.err
	}
	s.tracked.read = time.Now()
	s.tracked.entries, s.tracked.err = s.Conntrack()
	return s.tracked.entries, s.tracked.err
}

// kinds are what the states of TCP mean to a firewall.
var kinds = map[string]string{
	"SYN_SENT": "opening", "SYN_SENT2": "opening", "SYN_RECV": "opening",
	"ESTABLISHED": "established",
	"FIN_WAIT":    "closing", "CLOSE_WAIT": "closing", "LAST_ACK": "closing",
	"TIME_WAIT": "closed", "CLOSE": "closed",
}

// kind names the entry's state and the class of its rest of life.
func kind(e e2etest.Tracked) string {
	name := "open"
	if e.Proto != "udp" {
		if name = kinds[e.State]; name == "" {
			name = e.State
		}
	}
	if name == "closed" || name == "closing" {
		return name
	}
	return name + e.Flags + ", " + life(e.Seconds)
}

// life is the class of a rest of life. Their bounds lie far from all timeouts in use.
func life(seconds int) string {
	switch {
	case seconds <= 15:
		return "seconds"
	case seconds <= 90:
		return "a minute"
	case seconds <= 1800:
		return "minutes"
	}
	return "days"
}

// entryOf says what the table has about a conversation that was opened from an address.
func (s *stage) entryOf(proto string, from netip.AddrPort) string {
	all, err := s.table()
	if err != nil {
		return err.Error()
	}
	for _, e := range all {
		if e.Proto == proto && e.Original == from {
			return kind(e)
		}
	}
	return "none"
}

// census counts entries by protocol and kind, for those whose original direction passes the filter.
func (s *stage) census(of func(e2etest.Tracked) bool) string {
	all, err := s.table()
	if err != nil {
		return err.Error()
	}
	n := map[string]int{}
	for _, e := range all {
		if of(e) {
			n[e.Proto+" "+kind(e)]++
		}
	}
	var out []string
	for kind, count := range n {
		out = append(out, fmt.Sprintf("%d %s", count, kind))
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, "; ")
}
