// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// The last ADD gets a hostPort, for new connections at once; the old owner's
// DEL leaves the new mapping alone.
func TestPrivilegedLastAddWins(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	old := w.AddPod(rt, "old", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, old, "old", ":80")
	e2etest.AssertHostPort(t, w, "old")
	young := w.AddPod(rt, "young", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, young, "young", ":80")
	e2etest.AssertHostPort(t, w, "young")
	if err := young.Check(); err != nil {
		t.Errorf("CHECK of the new owner: %v", err)
	}
	old.MustDel()
	e2etest.AssertHostPort(t, w, "young")
	if err := young.Check(); err != nil {
		t.Errorf("CHECK of the new owner after the old one's DEL: %v", err)
	}
	young.MustDel()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
}

// A hostPort goes back to its old owner with the DEL of the new one, as when a container leaves a second network.
func TestPrivilegedHostPortComesBack(t *testing.T) {
	t.Parallel()
	for _, b := range append([]e2etest.Backend{{Name: "ebpf", Conf: `{"backend":"ebpf"}`}}, e2etest.NetfilterBackends()...) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			rt := w.Runtime(e2etest.Net0())
			before := w.NodeAfterPod(rt, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			old := w.AddPod(rt, "old", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			e2etest.Serve(t, old, "old", ":80")
			young := w.AddPod(rt, "young", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			e2etest.Serve(t, young, "young", ":80")
			e2etest.AssertHostPort(t, w, "young")
			young.MustDel()
			e2etest.AssertHostPort(t, w, "old")
			if err := old.Check(); err != nil {
				t.Errorf("CHECK of who has it again: %v", err)
			}
			old.MustDel()
			for _, p := range []*e2etest.Pod{old, young} {
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
			}
			w.AssertUnchanged(before, "after both")
		})
	}
}

// A UDP client that never stops sending reaches the new owner from its first
// packet after the ADD on, and keeps it when the old owner goes.
func TestPrivilegedRunningUDPFlowMoves(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	old := w.AddPod(rt, "old", e2etest.UDP(8080, 80))
	e2etest.Serve(t, old, "old", ":80")
	var talks []*e2etest.Talk
	for _, fam := range e2etest.Families() {
		c, err := e2etest.Dial(w.Client(), "udp"+fam.Suffix, "", e2etest.At(fam.Node(w.Client()), 8080))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SendRounds(e2etest.LongTalk); err != nil {
			t.Fatal(err)
		}
		talks = append(talks, c)
	}
	young := w.NewPod(rt, "young", e2etest.UDP(8080, 80))
	e2etest.Serve(t, young, "young", ":80")
	young.MustAdd()
	expect := func(when string) {
		t.Helper()
		for i, fam := range e2etest.Families() {
			for k := range e2etest.LongTalk {
				if err := talks[i].Send(fmt.Sprint(when, k)); err != nil {
					t.Fatalf("%s, %s, datagram %d: %v", fam.Name, when, k, err)
				}
				if got := talks[i].Answer.Server; got != "young" {
					t.Fatalf("%s, %s, datagram %d: answered by %s, want young", fam.Name, when, k, got)
				}
			}
		}
	}
	expect("after the new ADD")
	old.MustDel()
	expect("after the old DEL")
}

// A client that sends all the while loses at most a moment when the pod behind
// a hostPort is recreated the usual way: DEL, then ADD.
func TestPrivilegedRunningUDPFlowSurvivesRecreation(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	old := w.AddPod(rt, "old", e2etest.UDP(8080, 80))
	e2etest.Serve(t, old, "old", ":80")
	stop := make(chan struct{})
	var noise sync.WaitGroup
	defer noise.Wait()
	defer close(stop)
	var talks []*e2etest.Talk
	for _, fam := range e2etest.Families() {
		c, err := e2etest.Dial(w.Client(), "udp"+fam.Suffix, "", e2etest.At(fam.Node(w.Client()), 8080))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SendRounds(e2etest.LongTalk); err != nil {
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
	old.MustDel()
	if err := old.Delete(); err != nil {
		t.Fatal(err)
	}
	young := w.NewPod(rt, "young", e2etest.UDP(8080, 80))
	e2etest.Serve(t, young, "young", ":80")
	young.MustAdd()
	for _, c := range talks {
		e2etest.Eventually(t, 5*time.Second, func() error { return hears(c, "young") })
	}
}

// hears reads one answer and wants it to be of that server.
func hears(c *e2etest.Talk, name string) error {
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
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.AssertHostPort(t, w, "web")
	again := *p
	if err := again.TryAdd(); err == nil {
		t.Error("the second ADD succeeded, want an error: the interface exists")
	}
	e2etest.AssertHostPort(t, w, "web")
	if err := p.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}
