// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// full fills a /16 with n reservations of upstream's kind.
func full(tb testing.TB, n int) *bench {
	b := newBench(tb, `{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"%D","ranges":[[{"subnet":"10.1.0.0/16"}]]}}`)
	addr := netip.MustParseAddr("10.1.0.2")
	for i := range n {
		b.put(addr.String(), fmt.Sprintf("old%d\r\neth0", i))
		addr = addr.Next()
	}
	b.put("last_reserved_ip.0", addr.Prev().String())
	b.mustAdd("first") // builds the index
	b.mustDel("first")
	return b
}

func BenchmarkAddDel(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := full(b, n)
			p := x.plugin()
			for b.Loop() {
				a := x.call("pod", "eth0")
				if _, err := p.Add(context.Background(), a); err != nil {
					b.Fatal(err)
				}
				if err := p.Del(context.Background(), a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The cost of a call must not grow with the reservations. The bound is loose,
// since other tests run at the same time; reading 10,000 files takes 20 times
// longer.
func TestAddDoesNotReadAll(t *testing.T) {
	t.Parallel()
	b := full(t, 10_000)
	best := time.Hour
	for i := range 20 {
		start := time.Now()
		b.mustAdd(fmt.Sprint("pod", i))
		b.mustDel(fmt.Sprint("pod", i))
		best = min(best, time.Since(start))
	}
	if best > 5*time.Millisecond {
		t.Errorf("ADD and DEL at 10,000 reservations take %v", best)
	}
}
