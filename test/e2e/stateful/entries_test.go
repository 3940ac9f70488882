// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// entry is a line of netfilter's connection table.
type entry struct {
	proto    string
	state    string // of TCP and SCTP
	seconds  int    // left to live, 0 where nothing counts down
	original netip.AddrPort
	to       netip.AddrPort // where the original direction goes
	flags    string         // assured, unreplied
}

// tableAge is how old a table may be: the kernel walks the entries of all namespaces for each look, and a world's trials look at once.
const tableAge = 100 * time.Millisecond

// connections is the node's connection table as it was a moment ago.
type connections struct {
	mu      sync.Mutex
	read    time.Time
	entries []entry
	err     error
}

// table reads the node's connection table. A world has few entries, so it is read whole.
func (s *stage) table() ([]entry, error) {
	asked := time.Now()
	s.tracked.mu.Lock()
	defer s.tracked.mu.Unlock()
	if asked.Sub(s.tracked.read) < tableAge {
		return s.tracked.entries, s.tracked.err
	}
	s.tracked.entries, s.tracked.err = nil, nil
	var text []byte
	s.tracked.err = s.Node.Do(func() (err error) {
		s.tracked.read = time.Now()
		text, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	})
	for line := range strings.Lines(string(text)) {
		if e, ok := parseEntry(line); ok {
			s.tracked.entries = append(s.tracked.entries, e)
		}
	}
	return s.tracked.entries, s.tracked.err
}

// parseEntry reads one line, such as
// "ipv4     2 tcp      6 431999 ESTABLISHED src=192.0.2.2 dst=192.0.2.1 sport=51000 dport=8080 src=... [ASSURED] mark=0 zone=0 use=2".
func parseEntry(line string) (entry, bool) {
	f := strings.Fields(line)
	if len(f) < 6 || f[2] != "tcp" && f[2] != "udp" && f[2] != "sctp" {
		return entry{}, false
	}
	e := entry{proto: f[2]}
	rest := f[4:]
	if n, err := strconv.Atoi(rest[0]); err == nil {
		e.seconds, rest = n, rest[1:]
	}
	if !strings.Contains(rest[0], "=") && !strings.HasPrefix(rest[0], "[") {
		e.state, rest = rest[0], rest[1:]
	}
	first := map[string]string{} // of the original direction, which comes first
	for _, word := range rest {
		switch word {
		case "[ASSURED]":
			e.flags += " assured"
		case "[UNREPLIED]":
			e.flags += " unreplied"
		}
		if k, v, ok := strings.Cut(word, "="); ok && first[k] == "" {
			first[k] = v
		}
	}
	e.original, e.to = endpointOf(first["src"], first["sport"]), endpointOf(first["dst"], first["dport"])
	return e, e.original.IsValid()
}

func endpointOf(addr, port string) netip.AddrPort {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.AddrPort{}
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, uint16(p))
}

// kinds are what the states of TCP mean to a firewall.
var kinds = map[string]string{
	"SYN_SENT": "opening", "SYN_SENT2": "opening", "SYN_RECV": "opening",
	"ESTABLISHED": "established",
	"FIN_WAIT":    "closing", "CLOSE_WAIT": "closing", "LAST_ACK": "closing",
	"TIME_WAIT": "closed", "CLOSE": "closed",
}

// kind names the entry's state and the class of its rest of life.
func (e entry) kind() string {
	name := "open"
	if e.proto != "udp" {
		if name = kinds[e.state]; name == "" {
			name = e.state
		}
	}
	if name == "closed" || name == "closing" {
		return name
	}
	return name + e.flags + ", " + life(e.seconds)
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
		if e.proto == proto && e.original == from {
			return e.kind()
		}
	}
	return "none"
}

// census counts entries by protocol and kind, for those whose original direction passes the filter.
func (s *stage) census(of func(entry) bool) string {
	all, err := s.table()
	if err != nil {
		return err.Error()
	}
	n := map[string]int{}
	for _, e := range all {
		if of(e) {
			n[e.proto+" "+e.kind()]++
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
