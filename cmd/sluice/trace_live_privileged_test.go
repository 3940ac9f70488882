// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/trace"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// dials has the pod app connect, again and again, until the test ends.
func (w *traceWorld) dials(t *testing.T, to func(six bool) []string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			for _, six := range []bool{false, true} {
				for _, addr := range to(six) {
					once, cancel := context.WithTimeout(ctx, time.Second)
					if c, err := w.pods["app"].DialContext(once, "tcp", addr); err == nil {
						_ = c.Close()
					}
					cancel()
				}
			}
			pause(ctx, 300*time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); group.Wait() })
}

// Where a rule of nftables traces the packet, --wait says which rules it met, and which one dropped it.
func TestPrivilegedTraceLiveNFTables(t *testing.T) {
	w := newTraceWorld(t)
	client := func(six bool) netip.Addr {
		if six {
			return netip.MustParseAddr("2001:db8:1::2")
		}
		return netip.MustParseAddr("192.0.2.2")
	}
	w.dials(t, func(six bool) []string {
		return []string{netip.AddrPortFrom(client(six), 9000).String(), netip.AddrPortFrom(client(six), 9001).String()}
	})
	w.script(`nft -f - <<'END'
		table inet gate {
			chain begin { type filter hook prerouting priority raw; tcp dport { 9000, 9001 } meta nftrace set 1; }
			chain pods { tcp dport 9001 drop; }
			chain guard { type filter hook forward priority 0; policy accept; meta l4proto tcp jump pods; }
		}
END`)
	for _, six := range []bool{false, true} {
		v, status := w.trace("%s %s --port 9000 --wait 20s", w.addr("app", six), client(six))
		if status != 0 || v.Live == nil || !v.Live.Seen || v.Live.isDropped() || !slices.ContainsFunc(v.Live.Netfilter, func(s nftStepView) bool {
			return s.Chain == "inet gate guard" && s.Handle != 0 && s.Verdict == "jump pods"
		}) {
			t.Errorf("passes: %d, %+v", status, v.Live)
		}
		v, status = w.trace("%s %s --port 9001 --wait 20s", w.addr("app", six), client(six))
		if status != 1 || v.Live == nil {
			t.Fatalf("dropped: %d, %+v", status, v.Live)
		}
		by := v.Live.droppedByNetfilter()
		if by == nil || by.Chain != "inet gate pods" || by.Handle == 0 || !strings.Contains(v.Live.Text, "nft -a list chain inet gate pods") {
			t.Errorf("dropped: %+v", v.Live)
		}
	}
	w.script("nft flush chain inet gate pods; nft 'chain inet gate guard { policy drop; }'")
	v, status := w.trace("%s %s --port 9001 --wait 20s", w.addr("app", false), client(false))
	if by := v.Live.droppedByNetfilter(); status != 1 || by == nil || by.Chain != "inet gate guard" || by.Handle != 0 {
		t.Errorf("by the policy: %d, %+v", status, v.Live)
	}
	w.script("nft flush chain inet gate begin; iptables-nft -t raw -A PREROUTING -p tcp --dport 9001 -j TRACE")
	out, _, status := real(t, w.Node, "trace", w.addr("app", false).String(), client(false).String(), "--port", "9001", "--wait", "20s")
	if status != 1 || !strings.Contains(out, "the policy of chain inet gate guard: drop") || !strings.Contains(out, "live: dropped by nftables: ") {
		t.Errorf("%d, %s", status, out)
	}
}

// With --wait it says what became of a real packet that came after.
func TestPrivilegedTraceLive(t *testing.T) {
	w := newTraceWorld(t)
	w.dials(t, func(six bool) []string {
		if six {
			return nil
		}
		return []string{w.addr("web", six).String() + ":80", w.addr("closed", six).String() + ":80"}
	})
	v, status := w.trace("app00 web00 --port 80 --wait 20s")
	if status != 0 || v.Live == nil || !v.Live.Seen || v.Live.Flow == nil {
		t.Errorf("%d, %+v", status, v.Live)
	}
	v, status = w.trace("app00 closed00 --port 80 --wait 20s")
	if status != 1 || v.Live == nil || v.Live.Dropped == nil || v.Live.Dropped.Program != "sl_to_pod" {
		t.Errorf("%d, %+v", status, v.Live)
	}
	if v, _ = w.trace("app00 web00 --port 81 --wait 1s"); v.Live == nil || v.Live.Seen {
		t.Errorf("%+v", v.Live)
	}
}

// Without a datapath, and without permission, trace says what to do.
func TestPrivilegedTraceWithout(t *testing.T) {
	l := netlab.NewT(t)
	if _, errs, status := real(t, l.Node, "trace", "node", "192.0.2.2", "--port", "80"); status != 2 || !strings.Contains(errs, "Nothing is loaded") {
		t.Errorf("%d, %s", status, errs)
	}
}

// Without root, trace says so.
func TestPrivilegedTraceAsNobody(t *testing.T) {
	w := newTraceWorld(t)
	var out, errs bytes.Buffer
	status := 0
	if err := w.Node.Do(func() error { // on a thread of its own; with the user go the capabilities for files
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			return err
		}
		status = newApp(&out, &errs).run(t.Context(), []string{"trace", "app00", "web00", "--port", "80"})
		_, err := unix.SetfsuidRetUid(0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if status != 2 || !strings.Contains(errs.String(), "run this as root") || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("%d, %s", status, &errs)
	}
}

// On an L3 uplink, packets begin with the IP header.
func TestPrivilegedTraceL3Uplink(t *testing.T) {
	require.Link(t, "tun")
	w := newTraceWorld(t)
	w.script("ip tuntap add dev tun0 mode tun; ip addr add 198.18.0.1/24 dev tun0; ip addr add fd18::1/64 dev tun0 nodad; ip link set tun0 up")
	if _, errs, status := real(t, w.Node, "resync"); status != 0 {
		t.Fatal(errs)
	}
	for to, as := range map[string]string{"198.18.0.9": "198.18.0.1:", "fd18::9": "[fd18::1]:"} {
		v, status := w.trace("app00 %s --port 80", to)
		w.wantLine(v, status, 0, "sent out of tun0 as "+as)
		if v.Answer == nil || v.Answer.Verdict != trace.Delivered || v.Answer.Device != "v1" {
			t.Errorf("the answer: %+v", v.Answer)
		}
	}
}
