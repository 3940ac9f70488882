// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"
	"time"
)

// How long packets may wait, from a modem's rate to a data centre's. Never longer than fq keeps them.
func TestShapeHorizon(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mbit            float64
		ingress, egress time.Duration
	}{
		"10 Gbit/s": {10_000, 25 * time.Millisecond, time.Second},
		"20 Mbit/s": {20, 25 * time.Millisecond, time.Second},
		"1 Mbit/s":  {1, 262144 * time.Microsecond, time.Second},
		"64 kbit/s": {0.064, 4096 * time.Millisecond, 8192 * time.Millisecond},
		"8 kbit/s":  {0.008, 9 * time.Second, 9 * time.Second},
	} {
		s := RateLimit{Rate: uint64(tt.mbit * 1e6 / 8)}
		if l := s.limit(); time.Duration(l.Horizon) != tt.ingress || time.Duration(l.Mark) != tt.ingress/2 {
			t.Errorf("%s: ingress waits for %v, marks from %v", name, time.Duration(l.Horizon), time.Duration(l.Mark))
		}
		s.Egress = true
		if l := s.limit(); time.Duration(l.Horizon) != tt.egress {
			t.Errorf("%s: egress waits for %v", name, time.Duration(l.Horizon))
		}
		// What TestPrivilegedPolicerPassesDepartures needs, and the time that a packet may be late.
		least := 100*time.Millisecond + s.since(64<<10) + (tt.egress+s.since(64<<10))/4
		s.Police = true
		if l := s.limit(); time.Duration(l.Burst) < least || time.Duration(l.Burst) > least+time.Millisecond || l.Horizon != 0 {
			t.Errorf("%s: the policer lets %v of the rate through, want %v", name, time.Duration(l.Burst), least)
		}
	}
}
