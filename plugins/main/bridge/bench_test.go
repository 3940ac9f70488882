// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// BenchmarkPrivileged measures ADD and DEL without the process around them, on a
// node that carries other pods already. IPAM and datapath are fakes.
func BenchmarkPrivileged(b *testing.B) {
	for _, others := range []int{0, 250} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			r := newRig(b)
			r.ipam.Answer = answer46
			r.dir = attachments.Open(attachments.DefaultDir) // in the node's own /run, a tmpfs as on a real node
			r.plug = New(r.deps())
			for i := range others {
				pod := r.node.PodT(b, fmt.Sprintf("o%d", i))
				r.mustAdd(call("1.1.0", fmt.Sprintf("o%d", i), "eth0", pod.Path, life))
			}
			pod := r.node.PodT(b, "p")
			a := call("1.1.0", "c", "eth0", pod.Path, life)
			var add, del time.Duration
			for b.Loop() {
				if err := r.node.Do(func() error { // once for both, so that entering the node is not measured
					start := time.Now()
					if _, err := r.plug.Add(b.Context(), a); err != nil {
						return err
					}
					mid := time.Now()
					err := r.plug.Del(b.Context(), a)
					add += mid.Sub(start)
					del += time.Since(mid)
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(add.Microseconds())/1000/float64(b.N), "ADD-ms")
			b.ReportMetric(float64(del.Microseconds())/1000/float64(b.N), "DEL-ms")
		})
	}
}
