// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Pods of different networks of a node reach each other, and are masqueraded as toward
// the outside: each sees the node's address in its own network. A policy that one of them has changes nothing of that.
func TestPrivilegedAcrossNetworks(t *testing.T) {
	t.Parallel()
	for name, firewall := range map[string]e2etest.Attributes{
		"open": nil, "policy": {"ingressPolicy": "isolated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			one := e2etest.Net0()
			one.Firewall = firewall
			acrossNetworks(t, w.AddPod(w.Runtime(one), "a"), w.AddPod(w.Runtime(e2etest.Net1()), "b"))
		})
	}
}

func acrossNetworks(t *testing.T, a, b *e2etest.Pod) {
	t.Helper()
	e2etest.Serve(t, a, "a", ":80")
	e2etest.Serve(t, b, "b", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, x := range []struct {
			from, to *e2etest.Pod
			seen     string
		}{
			{a, b, map[string]string{"4": "10.2.0.1", "6": "fd00:10:2::1"}[fam.Suffix]},
			{b, a, fam.Gateway},
		} {
			c, err := e2etest.Dial(x.from, proto+fam.Suffix, "", e2etest.At(fam.Pod(x.to), 80))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if c.Answer.Server != x.to.Name || c.Answer.Peer.Addr().String() != x.seen {
				t.Errorf("%s saw %s, want %s to see %s", c.Answer.Server, c.Answer.Peer, x.to.Name, x.seen)
			}
			if err := c.SendRounds(e2etest.LongTalk); err != nil {
				t.Error(err)
			}
		}
	})
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for seq := range uint16(5) {
			if err := errors.Join(e2etest.Ping(a, fam, fam.Pod(b), 77, seq), e2etest.Ping(b, fam, fam.Pod(a), 77, seq)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Where one of the networks is not masqueraded, its pods show themselves, and their
// peers' answers come from themselves too.
func TestPrivilegedAcrossNetworksHalf(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	open := e2etest.Net1()
	open.NoMasq = true
	a, b := w.AddPod(w.Runtime(e2etest.Net0()), "a"), w.AddPod(w.Runtime(open), "b")
	e2etest.Serve(t, a, "a", ":80")
	e2etest.Serve(t, b, "b", ":80")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		c, err := e2etest.Dial(b, proto+fam.Suffix, "", e2etest.At(fam.Pod(a), 80))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Answer.Peer.Addr() != fam.Pod(b) {
			t.Errorf("a saw %s, want %s", c.Answer.Peer, fam.Pod(b))
		}
		if err := c.SendRounds(e2etest.LongTalk); err != nil {
			t.Error(err)
		}
		if got := e2etest.Ask(t, a, proto, e2etest.At(fam.Pod(b), 80)); got.Peer.Addr() == fam.Pod(a) {
			t.Errorf("b saw %s, want the node", got.Peer)
		}
	})
}
