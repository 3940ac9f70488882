// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// The last who waits for a key and is alive is next. Who is dead leaves the queue, and who gives the key up is passed over.
func TestQueue(t *testing.T) {
	t.Parallel()
	const dead, leaving = 7, 8
	one := func(port uint16, owner uint64) hostport.Entry {
		k := hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: unix.IPPROTO_TCP, Port: port}
		return hostport.Entry{Mapping: hostport.Mapping{Key: k, PodIP: netip.MustParseAddr("10.1.0.2"), PodPort: 80}, Owner: owner}
	}
	claim := hostport.NewClaim(one(82, 0).Key, dead, 1) // it has no endpoint that could be dead
	waiting := []hostport.Entry{one(80, 1), one(81, 2), one(80, 3), one(80, dead), one(80, leaving), claim}
	asked := 0
	q := newWaitQueue(waiting, func(e hostport.Entry) (bool, error) {
		if e.IsClaim() {
			return true, nil
		}
		asked++
		return e.Owner != dead, nil
	})
	for _, tt := range []struct {
		port uint16
		want int
	}{{80, 2}, {81, 1}, {82, 5}, {83, -1}} {
		i, err := q.next(one(tt.port, 0).Key, leaving)
		if err != nil || i != tt.want {
			t.Errorf("port %d: %d, want %d: %v", tt.port, i, tt.want, err)
		}
		if i >= 0 {
			q.left[i] = true
		}
	}
	if want := []hostport.Entry{waiting[0], waiting[4]}; !reflect.DeepEqual(q.rest(), want) {
		t.Errorf("left: %v, want %v", q.rest(), want)
	}
	if len(q.dead) != 1 || q.dead[0].Owner != dead || asked != 3 {
		t.Errorf("dead: %v; asked %d times", q.dead, asked)
	}
}
