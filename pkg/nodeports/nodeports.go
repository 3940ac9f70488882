// SPDX-License-Identifier: Apache-2.0

// Package nodeports finds hostPorts that take traffic from the node: from a socket that waits on the same port, or from a tunnel of the
// node agent. A hostPort wins over both, since packets are translated before the node looks for a socket.
package nodeports

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/hostport"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Recorded returns the ports that records have, each once and in order.
func Recorded(records []*attachments.Record) []hostport.Key {
	var out []hostport.Key
	for _, r := range records {
		var s struct {
			Ports []hostport.Key `json:"ports"`
		}
		if _, err := r.Section("portmap", &s); err == nil {
			out = append(out, s.Ports...)
		}
	}
	out = slices.DeleteFunc(out, func(p hostport.Key) bool { return !p.HostIP.IsValid() })
	slices.SortFunc(out, func(a, b hostport.Key) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// Conflict is a published port that takes what a socket of the node waits for.
type Conflict struct {
	hostport.Key
	Socket netip.AddrPort
	Inode  uint32 // of the socket
}

// String says what takes what.
func (c Conflict) String() string {
	return fmt.Sprintf("hostPort %s takes what a socket of the node waits for at %s", c.Key, c.Socket)
}

// Find returns the conflicts of ports in the network namespace of the calling thread, at most one for each. It asks the kernel once for
// each protocol and family, however many ports there are. What it cannot ask is in the error, beside what it found.
func Find(ports []hostport.Key) ([]Conflict, error) {
	byProto := make(map[uint8][]hostport.Key)
	for _, p := range ports {
		byProto[p.Proto] = append(byProto[p.Proto], p)
	}
	var out []Conflict
	var errs []error
	for proto, of := range byProto {
		sockets, err := listeners(proto, of)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		byPort := make(map[uint16][]rtnl.Listener)
		for _, s := range sockets {
			byPort[s.Local.Port()] = append(byPort[s.Local.Port()], s)
		}
		for _, p := range of {
			c, found, err := conflict(p, byPort[p.Port])
			errs = append(errs, err)
			if found {
				out = append(out, c)
			}
		}
	}
	slices.SortFunc(out, func(a, b Conflict) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return out, errors.Join(errs...)
}

func listeners(proto uint8, ports []hostport.Key) ([]rtnl.Listener, error) {
	if proto == unix.IPPROTO_SCTP {
		return sctpListeners()
	}
	one := ports[0].Port
	if slices.ContainsFunc(ports, func(p hostport.Key) bool { return p.Port != one }) {
		one = 0
	}
	return rtnl.Listeners(proto, one)
}

func conflict(p hostport.Key, sockets []rtnl.Listener) (Conflict, bool, error) {
	for _, s := range sockets {
		if !covers(p, s) {
			continue
		}
		if p.HostIP.IsUnspecified() && !s.Local.Addr().IsUnspecified() {
			virtual, err := onDummy(s.Local.Addr())
			if err != nil {
				return Conflict{}, false, err
			}
			if virtual {
				continue
			}
		}
		return Conflict{p, s.Local, s.Inode}, true, nil
	}
	return Conflict{}, false, nil
}

// covers reports whether the port and the socket have an address in common.
func covers(p hostport.Key, s rtnl.Listener) bool {
	at := s.Local.Addr()
	both := at.Is6() && at.IsUnspecified() && !s.V6Only
	if at.Is4() != p.HostIP.Is4() {
		return both
	}
	return both || at == p.HostIP || at.IsUnspecified() || p.HostIP.IsUnspecified()
}

// onDummy reports whether an address is on a dummy device, as those of Services and of resolvers of the node are. A hostPort for every
// address of the node does not take their traffic.
func onDummy(a netip.Addr) (bool, error) {
	if a.Is6() && a.IsLinkLocalUnicast() { // the address does not tell the device
		return false, nil
	}
	h, err := rtnl.New()
	if err != nil {
		return false, err
	}
	defer h.Close()
	r, err := h.RouteTo(a, 0)
	if errors.Is(err, rtnl.ErrNotFound) {
		return false, nil
	}
	if err != nil || r.LinkIndex <= 0 {
		return false, err
	}
	l, err := h.LinkByIndex(r.LinkIndex)
	if errors.Is(err, rtnl.ErrNotFound) {
		return false, nil
	}
	return l.Kind == "dummy", err
}
