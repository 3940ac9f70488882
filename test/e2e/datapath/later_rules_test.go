// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// dropForwarded are ways to write a rule that drops all that the node forwards.
var dropForwarded = []struct{ name, script string }{
	{"nft", "nft add table inet later; nft 'add chain inet later forward { type filter hook forward priority 0; policy drop; }'"},
	{"iptables", "iptables -w 30 -I FORWARD -j DROP; ip6tables -w 30 -I FORWARD -j DROP"},
}

// A rule that an administrator adds later stops a connection that has learned the fast path, after relearnSeconds at the
// latest. Until then relearning disturbs no connection, not even where packets are dropped that conntrack calls invalid.
func TestPrivilegedLaterRule(t *testing.T) {
	t.Parallel()
	for _, rule := range dropForwarded {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			e2etest.LoadNFT(t, w.Node, dropInvalidRules)
			w.Configure(`{"relearnSeconds": 1}`)
			rt := w.Runtime(e2etest.Net0())
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
			e2etest.Serve(t, web, "web", ":80")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			talks := forwardedTalks(t, w, web, app)
			for range 3 { // each round is learned, used, and relearned
				for name, c := range talks {
					if err := c.SendRounds(e2etest.LongTalk); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if !c.UDP {
						e2etest.SendLong(t, c, strings.Repeat("x", e2etest.LongerThanQueues))
					}
				}
				time.Sleep(1100 * time.Millisecond)
			}
			before := w.Counters(t, web)
			if before.RxFast == 0 || before.TxFast == 0 {
				t.Fatalf("no packet took the fast path: %+v", before)
			}
			e2etest.RunScript(t, w, rule.script)
			wantSilence(t, talks, 2*time.Second)
		})
	}
}

// While "conntrack relearn --follow" runs, the rule stops the connections at once.
func TestPrivilegedLaterRuleFollowed(t *testing.T) {
	t.Parallel()
	for _, rule := range dropForwarded {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.Configure(`{"relearnSeconds": 3600}`)
			rt := w.Runtime(e2etest.Net0())
			web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
			e2etest.Serve(t, web, "web", ":80")
			e2etest.Serve(t, w.Client(), "client", ":9000")
			follower := w.Start(e2etest.Programs.Path("sluice"), "conntrack", "relearn", "--follow")
			e2etest.Eventually(t, 5*time.Second, func() error {
				if !strings.Contains(follower.Out.String(), "confirmed again") {
					return fmt.Errorf("the follower has not begun: %q", follower.Out)
				}
				return nil
			})
			talks := forwardedTalks(t, w, web, app)
			for name, c := range talks {
				if err := c.SendRounds(e2etest.LongTalk); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			e2etest.RunScript(t, w, rule.script)
			wantSilence(t, talks, 2*time.Second)
			follower.Signal(unix.SIGTERM)
		})
	}
}

// wantSilence goes on with all conversations, which must stop within limit.
func wantSilence(t *testing.T, talks map[string]*e2etest.Talk, limit time.Duration) {
	t.Helper()
	deadline := time.Now().Add(netlab.Patient(limit))
	stopped := make([]func(), 0, len(talks))
	for name, c := range talks {
		c.Timeout = e2etest.NoAnswerTimeout
		stopped = append(stopped, func() {
			for n := 0; c.Send(fmt.Sprintf("more %d", n)) == nil; n++ {
				if time.Now().After(deadline) {
					t.Errorf("%s: still goes on", name)
					return
				}
			}
		})
	}
	e2etest.AtOnce(stopped...)
}

// With 0 a learned TCP connection keeps to the fast path. What is not TCP shows itself to netfilter, which would forget it.
func TestPrivilegedNeverRelearned(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.LoadNFT(t, w.Node, dropInvalidRules)
	w.Configure(`{"relearnSeconds": 0}`)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	talks := forwardedTalks(t, w, web, app)
	sayOn := func() {
		for name, c := range talks {
			if strings.HasSuffix(name, "udp") {
				continue
			}
			if err := c.SendRounds(e2etest.LongTalk); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	sayOn()
	e2etest.RunScript(t, w, dropForwarded[0].script)
	time.Sleep(1100 * time.Millisecond)
	sayOn()
}

// forwardedTalks starts a conversation on each kind of path that FORWARD decides about.
func forwardedTalks(t *testing.T, w *e2etest.World, web, app *e2etest.Pod) map[string]*e2etest.Talk {
	t.Helper()
	talks := openTalks(t, w, web, app)
	for name := range talks {
		if strings.HasPrefix(name, "node") || strings.HasPrefix(name, "pod to pod") { // a bridge's own, unless br_netfilter is loaded
			delete(talks, name)
		}
	}
	return talks
}
