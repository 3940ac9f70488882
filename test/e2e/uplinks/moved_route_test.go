// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// moveDefault lets the default routes lead by a client.
func moveDefault(w *e2etest.World, c *netlab.Client) {
	w.T.Helper()
	for _, fam := range e2etest.Families() {
		e2etest.MustRun(w.T, w.Node, fmt.Sprintf("ip -%s route replace default via %s dev %s", fam.Suffix, fam.Client(c), c.Uplink.Name))
	}
}

// The default route moves to another uplink while a masqueraded conversation goes on. Both uplinks stay up. From then on
// its packets leave by the new one, with the address of the new one: answers to the other one would not find the way back.
func TestPrivilegedMovedRoute(t *testing.T) {
	t.Parallel()
	tests := []struct {
		backend e2etest.Backend
		pause   time.Duration
	}{
		{pause: 0}, {pause: 30 * time.Millisecond}, // within the time that a next hop is kept, and beyond
	}
	for _, b := range e2etest.NetfilterBackends() {
		tests = append(tests, struct {
			backend e2etest.Backend
			pause   time.Duration
		}{backend: b})
	}
	for _, tt := range tests {
		t.Run(tt.backend.Name+fmt.Sprint(tt.pause), func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t, e2etest.TwoUplinks())
			if tt.backend.Name != "" {
				w.SetBackend(tt.backend)
			}
			app := w.AddPod(w.Runtime(e2etest.Net0()), "app")
			serveElsewhere(w, 9000)
			first, second := w.Clients[0], w.Clients[1]
			for _, fam := range e2etest.Families() {
				moveDefault(w, first)
				udp, err := e2etest.Dial(app, "udp"+fam.Suffix, "", e2etest.At(elsewhere(fam), 9000))
				if err != nil {
					t.Fatal(err)
				}
				defer udp.Close()
				tcp, err := e2etest.Dial(app, "tcp"+fam.Suffix, "", e2etest.At(elsewhere(fam), 9000))
				if err != nil {
					t.Fatal(err)
				}
				defer tcp.Close()
				if err := errors.Join(udp.SendRounds(20), tcp.SendRounds(20)); err != nil {
					t.Fatalf("%s: before: %v", fam.Name, err)
				}
				moveDefault(w, second)
				time.Sleep(tt.pause)
				// A next hop holds for some milliseconds, and a datagram may be lost.
				udp.Timeout = netlab.Patient(500 * time.Millisecond)
				err = nil
				for end := time.Now().Add(e2etest.AnswerTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
					if err = udp.Send("after"); err == nil && udp.Answer.Server == second.Name {
						break
					}
				}
				if err != nil || udp.Answer.Server != second.Name || udp.Answer.Peer.Addr() != fam.Node(second) {
					t.Errorf("%s UDP: %v, answered by %s, which saw %s; want %s, %s", fam.Name, err, udp.Answer.Server, udp.Answer.Peer, second.Name, fam.Node(second))
				}
				if err := udp.SendRounds(50); err != nil {
					t.Errorf("%s UDP: %v", fam.Name, err)
				}
				// The host behind the new uplink has no such TCP connection: the pod is to learn that at once.
				for err = nil; err == nil; {
					err = tcp.Send("after")
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s TCP: %v, want a reset", fam.Name, err)
				}
				if got := e2etest.Ask(t, app, "tcp"+fam.Suffix, e2etest.At(elsewhere(fam), 9000)); got.Server != second.Name || got.Peer.Addr() != fam.Node(second) {
					t.Errorf("%s: a new connection is answered by %s, which saw %s", fam.Name, got.Server, got.Peer)
				}
			}
		})
	}
}
