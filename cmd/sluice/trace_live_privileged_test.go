// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
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
