// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestState(t *testing.T) {
	t.Parallel()
	const now = 1000 * time.Hour
	tests := []struct {
		name  string
		proto uint8
		flags Flags
		idle  time.Duration
		want  string
	}{
		{"first packet", unix.IPPROTO_TCP, podOpened, 0, "unreplied"},
		{"answered", unix.IPPROTO_TCP, podOpened | replied, 0, "new"},
		{"proven", unix.IPPROTO_TCP, podOpened | replied | assured, time.Hour, "established"},
		{"one FIN", unix.IPPROTO_TCP, replied | assured | finTX, time.Minute, "closing"},
		{"two FINs", unix.IPPROTO_TCP, replied | assured | finTX | finRX, time.Second, "closed"},
		{"reset", unix.IPPROTO_TCP, assured | rst, time.Second, "closed"},
		{"two FINs, long ago", unix.IPPROTO_TCP, replied | assured | finTX | finRX, time.Minute, "expired"},
		{"opening, long ago", unix.IPPROTO_TCP, podOpened, 2 * time.Minute, "expired"},
		{"UDP", unix.IPPROTO_UDP, 0, time.Second, "unreplied"},
		{"UDP, old", unix.IPPROTO_UDP, 0, time.Minute, "expired"},
		{"UDP both ways", unix.IPPROTO_UDP, replied | assured, time.Minute, "established"},
		{"UDP both ways, old", unix.IPPROTO_UDP, replied | assured, time.Hour, "expired"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := &Record{Key: Key{Proto: tt.proto}, Flags: tt.flags, LastSeen: now - tt.idle}
			if got := r.State(now); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestSlow(t *testing.T) {
	t.Parallel()
	const done = txFirst | txConfirm | rxFirst | rxConfirm | replied | assured
	for _, tt := range []struct {
		name  string
		flags Flags
		dev   uint32
		age   time.Duration
		want  string
	}{
		{"confirmed", done, 2, time.Hour, ""},
		{"confirmed, tracked", done | tracked, 2, time.Hour, ""},
		{"to a pod", done | localPeer, 0, time.Hour, ""},
		{"first packet", podOpened | txFirst, 0, 0, SlowOpening},
		{"answered", podOpened | txFirst | txConfirm | rxFirst | replied, 2, time.Second, SlowConfirming},
		{"confirmed again", done &^ (txConfirm | rxConfirm), 2, time.Hour, SlowConfirming},
		{"one direction", done &^ rxConfirm, 2, time.Hour, SlowConfirming},
		{"to the node", podOpened | txFirst, 0, time.Hour, SlowStack},
		{"FIN, tracked", done | tracked | finTX, 2, time.Hour, SlowEnding},
		{"FIN, not tracked", done | finTX, 2, time.Hour, ""},
		{"hairpin", done | hairpin, 2, time.Hour, SlowHairpin},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := &Record{Flags: tt.flags, OutIfindex: tt.dev, LastSeen: tt.age}
			if got := r.Slow(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// An index counts with its connection, which alone tells whether it has ended.
func TestUse(t *testing.T) {
	t.Parallel()
	const now = 1000 * time.Hour
	var u Use
	for _, flags := range []Flags{
		assured,                      // 1
		assured | snat, index | snat, // 2
		assured | dnat,                     // 1: it has no index
		assured | rst | snat, index | snat, // ended
	} {
		u.Count(&Record{Key: Key{Proto: unix.IPPROTO_TCP}, Flags: flags, LastSeen: now}, now)
	}
	u.Count(&Record{Key: Key{Proto: unix.IPPROTO_TCP}, Flags: assured | snat}, now) // expired
	if want := (Use{Entries: 7, Living: 4}); u != want {
		t.Errorf("%+v, want %+v", u, want)
	}
}

// A stamp of another CPU may be newer than the clock that was read before it.
func TestIdleIsNeverNegative(t *testing.T) {
	t.Parallel()
	r := &Record{LastSeen: 10, Created: 10}
	if r.Idle(5) != 0 || r.Age(5) != 0 {
		t.Error("negative")
	}
}

// The timeouts shown are those of the programs.
func TestTimeoutsAreThoseOfC(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile("../../../bpf/lib/conntrack/conntrack_table.h")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]time.Duration{
		"TCP_OPENING": timeoutTCPOpening, "TCP": timeoutTCP, "TCP_HALF_CLOSED": timeoutTCPHalfClosed,
		"TCP_CLOSED": timeoutTCPClosed, "NEW": timeoutNew, "REPLIED": timeoutReplied,
	}
	for _, m := range regexp.MustCompile(`#define SL_TIMEOUT_(\w+) \((\d+) \* NSEC_PER_SEC\)`).FindAllStringSubmatch(string(src), -1) {
		s, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := want[m[1]]; !ok || got != time.Duration(s)*time.Second {
			t.Errorf("SL_TIMEOUT_%s is %d s, here %s", m[1], s, got)
		}
		delete(want, m[1])
	}
	if len(want) > 0 {
		t.Errorf("not found in the C source: %v", want)
	}
}
