// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// The last ADD gets a hostPort, for new connections at once; the old owner's
// DEL leaves the new mapping alone.
func TestPrivilegedLastAddWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	old := w.add(rt, "old", tcp(8080, 80), udp(8080, 80))
	serve(t, old, "old", ":80")
	whoIs(t, w, "old")
	young := w.add(rt, "young", tcp(8080, 80), udp(8080, 80))
	serve(t, young, "young", ":80")
	whoIs(t, w, "young")
	if err := young.check(); err != nil {
		t.Errorf("CHECK of the new owner: %v", err)
	}
	old.mustDel()
	whoIs(t, w, "young")
	if err := young.check(); err != nil {
		t.Errorf("CHECK of the new owner after the old one's DEL: %v", err)
	}
	young.mustDel()
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		refused(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
	})
}

// A hostPort goes back to its old owner with the DEL of the new one, as when a container leaves a second network.
func TestPrivilegedHostPortComesBack(t *testing.T) {
	t.Parallel()
	for _, b := range append([]backend{{"ebpf", `{"backend":"ebpf"}`}}, netfilterBackends()...) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.use(b)
			rt := w.runtime(net0())
			before := w.after(rt, tcp(8080, 80), udp(8080, 80))
			old := w.add(rt, "old", tcp(8080, 80), udp(8080, 80))
			serve(t, old, "old", ":80")
			young := w.add(rt, "young", tcp(8080, 80), udp(8080, 80))
			serve(t, young, "young", ":80")
			whoIs(t, w, "young")
			young.mustDel()
			whoIs(t, w, "old")
			if err := old.check(); err != nil {
				t.Errorf("CHECK of who has it again: %v", err)
			}
			old.mustDel()
			for _, p := range []*pod{old, young} {
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
			}
			w.same(before, "after both")
		})
	}
}

func whoIs(t *testing.T, w *world, want string) {
	t.Helper()
	for _, fam := range families() {
		for _, proto := range []string{"tcp", "udp"} {
			if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080)); got.name != want {
				t.Errorf("%s %s: answered by %s, want %s", fam.name, proto, got.name, want)
			}
		}
	}
}

// A UDP client that never stops sending reaches the new owner from its first
// packet after the ADD on, and keeps it when the old owner goes.
func TestPrivilegedRunningUDPFlowMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	old := w.add(rt, "old", udp(8080, 80))
	serve(t, old, "old", ":80")
	var talks []*talk
	for _, fam := range families() {
		c, err := dial(w.Client(), "udp"+fam.suffix, "", at(fam.node(w.Client()), 8080))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.rounds(longTalk); err != nil {
			t.Fatal(err)
		}
		talks = append(talks, c)
	}
	young := w.newPod(rt, "young", udp(8080, 80))
	serve(t, young, "young", ":80")
	young.mustAdd()
	expect := func(when string) {
		t.Helper()
		for i, fam := range families() {
			for k := range longTalk {
				if err := talks[i].say(fmt.Sprint(when, k)); err != nil {
					t.Fatalf("%s, %s, datagram %d: %v", fam.name, when, k, err)
				}
				if got := talks[i].answer.name; got != "young" {
					t.Fatalf("%s, %s, datagram %d: answered by %s, want young", fam.name, when, k, got)
				}
			}
		}
	}
	expect("after the new ADD")
	old.mustDel()
	expect("after the old DEL")
}

// A client that sends all the while loses at most a moment when the pod behind
// a hostPort is recreated the usual way: DEL, then ADD.
func TestPrivilegedRunningUDPFlowSurvivesRecreation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	old := w.add(rt, "old", udp(8080, 80))
	serve(t, old, "old", ":80")
	stop := make(chan struct{})
	var noise sync.WaitGroup
	defer noise.Wait()
	defer close(stop)
	var talks []*talk
	for _, fam := range families() {
		c, err := dial(w.Client(), "udp"+fam.suffix, "", at(fam.node(w.Client()), 8080))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.rounds(longTalk); err != nil {
			t.Fatal(err)
		}
		talks = append(talks, c)
		noise.Go(func() { // the client that never stops
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					_, _ = c.Write([]byte("noise"))
				}
			}
		})
	}
	old.mustDel()
	if err := old.Delete(); err != nil {
		t.Fatal(err)
	}
	young := w.newPod(rt, "young", udp(8080, 80))
	serve(t, young, "young", ":80")
	young.mustAdd()
	for _, c := range talks {
		eventually(t, 5*time.Second, func() error { return hears(c, "young") })
	}
}

// hears reads one answer and wants it to be of that server.
func hears(c *talk, name string) error {
	buf := make([]byte, 2048)
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	n, err := c.Read(buf)
	if err != nil {
		return fmt.Errorf("nobody answers the running client: %w", err)
	}
	if !strings.HasPrefix(string(buf[:n]), name+" ") {
		return fmt.Errorf("the running client hears %q, want %s", buf[:n], name)
	}
	return nil
}

// A repeated ADD of one attachment is refused, since its interface is there,
// and breaks nothing.
func TestPrivilegedSecondAddOfOneAttachment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	p := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
	serve(t, p, "web", ":80")
	whoIs(t, w, "web")
	again := *p
	if err := again.tryAdd(); err == nil {
		t.Error("the second ADD succeeded, want an error: the interface exists")
	}
	whoIs(t, w, "web")
	if err := p.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}
