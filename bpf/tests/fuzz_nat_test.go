// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"os"
	"testing"
)

// FuzzNAT sends any packet of any connection of a masqueraded pod out and its answer
// back. The model is a map: which connection has which outside tuple. No two have one,
// none shows the pod, the way back undoes the way there, and nothing else of a packet
// changes but its hop (leaves, comesBack).
func FuzzNAT(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("a network namespace and BPF need root")
	}
	fx := newFixture(f, nil)
	w := fx.walk(f, fx.modes[0], masquerading(podA))
	seen := newSightings()
	for family := range uint8(2) {
		for proto := range uint8(3) {
			f.Add(family, proto, uint16(keptPort), uint8(1), uint8(0), uint8(64), []byte("payload"))
			f.Add(family, proto, uint16(movedPort), uint8(2), uint8(3), uint8(2), []byte{})
			f.Add(family, proto, uint16(0), uint8(0), uint8(4), uint8(255), []byte{0xff, 0xff, 0xff})
		}
	}
	f.Fuzz(func(t *testing.T, family, proto uint8, port uint16, remote, kind, ttl uint8, payload []byte) {
		if len(payload) > 1400 || ttl < 2 {
			return
		}
		w.tb = t
		if len(seen.inside) >= 400 { // the pod would come over its share of the table, and the model knows nothing of that
			w.empty(proven)
			w.empty(unproven)
			seen = newSightings()
		}
		p := fuzzed(pick(int(family%2)*2+4, 4, 6), protocols[proto%3].proto, port, remote)
		p.frame = p.tx([]string{"S", "A", "PA", "FA", "R", "SP"}[kind%6])
		p.srcMAC, p.dstMAC, p.ttl, p.payload = podA.mac, podA.gwMAC, ttl, payload
		o := leaves(w, p)
		seen.note(t, p.conn, o)
		comesBack(w, p, o)
	})
}

// fuzzed is a connection of podA to one of 16 ports of 16 hosts.
func fuzzed(family, proto int, port uint16, remote uint8) anything {
	host := netip.AddrFrom4([4]byte{203, 0, 113, remote >> 4})
	if family == 6 {
		a := client6.As16()
		a[15] = remote >> 4
		host = netip.AddrFrom16(a)
	}
	return anything{conn: conn{proto: proto, local: at(podA.addr(family), port), remote: at(host, 1+uint16(remote&15))}}
}
