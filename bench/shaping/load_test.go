// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// An echo that is lost took as long as was waited for it: without it the quantiles were those of the lucky ones, and the shorter the
// more are lost.
func TestPrivilegedLostEchoesCount(t *testing.T) {
	l := netlab.NewT(t)
	to, err := l.Node.ListenPacket("udp", "192.0.2.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	go func() { // answers every other one
		buf := make([]byte, 64)
		for i := 0; ; i++ {
			n, from, err := to.ReadFrom(buf)
			if err != nil {
				return
			}
			if i%2 == 0 {
				_, _ = to.WriteTo(buf[:n], from)
			}
		}
	}()
	times, lost, err := echo(l.Client().NS, to.LocalAddr().String(), 10*time.Millisecond, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if lost != 5 || len(times) != 10 {
		t.Errorf("%d of 10 echoes have a time, %d are lost", len(times), lost)
	}
	if p50, p99 := quantile(times, 0.25), quantile(times, 0.99); p50 >= echoTimeout || p99 != echoTimeout {
		t.Errorf("quantiles %v and %v", p50, p99)
	}
}
