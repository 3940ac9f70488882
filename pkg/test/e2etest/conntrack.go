// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Tracked is an entry of netfilter's connection table.
type Tracked struct {
	Proto    string
	State    string // of TCP and SCTP
	Seconds  int    // left to live, 0 where nothing counts down
	Original netip.AddrPort
	Flags    string // assured, unreplied
}

// Conntrack reads the node's connection table: its TCP, UDP and SCTP. The kernel walks the entries of all namespaces for it.
func (w *World) Conntrack() ([]Tracked, error) {
	var table []byte
	err := w.Node.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	})
	var out []Tracked
	for line := range strings.Lines(string(table)) {
		if e, ok := ParseTracked(line); ok {
			out = append(out, e)
		}
	}
	return out, err
}

// ParseTracked reads one line, such as
// "ipv4     2 tcp      6 431999 ESTABLISHED src=192.0.2.2 dst=192.0.2.1 sport=51000 dport=8080 src=... [ASSURED] mark=0 zone=0 use=2".
func ParseTracked(line string) (Tracked, bool) {
	f := strings.Fields(line)
	if len(f) < 6 || f[2] != "tcp" && f[2] != "udp" && f[2] != "sctp" {
		return Tracked{}, false
	}
	e := Tracked{Proto: f[2]}
	rest := f[4:]
	if n, err := strconv.Atoi(rest[0]); err == nil {
		e.Seconds, rest = n, rest[1:]
	}
	if !strings.Contains(rest[0], "=") && !strings.HasPrefix(rest[0], "[") {
		e.State, rest = rest[0], rest[1:]
	}
	first := map[string]string{} // of the original direction, which comes first
	for _, word := range rest {
		switch word {
		case "[ASSURED]":
			e.Flags += " assured"
		case "[UNREPLIED]":
			e.Flags += " unreplied"
		}
		if k, v, ok := strings.Cut(word, "="); ok && first[k] == "" {
			first[k] = v
		}
	}
	var err error
	e.Original, err = netip.ParseAddrPort(net.JoinHostPort(first["src"], first["sport"]))
	return e, err == nil
}
