// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/trace"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// With --wait it says what became of a real packet that came after.
func TestPrivilegedTraceLive(t *testing.T) {
	w := newTraceWorld(t)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				for _, to := range []string{"web", "closed"} {
					if c, err := w.pods["app"].DialContext(ctx, "tcp", w.addr(to, false).String()+":80"); err == nil {
						_ = c.Close()
					}
				}
				cancel()
			}
		}
	}()
	defer close(stop)
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
