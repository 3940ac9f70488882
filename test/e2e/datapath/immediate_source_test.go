// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// With fastPath immediate the node's stack still judges sources that are not behind the uplink. Of IPv4 it drops the node's own addresses
// by itself, and any by rp_filter. In both families rules of the node see such packets.
func TestPrivilegedImmediateSources(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"fastPath": "immediate"}`)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.UDP(8080, 80))
	other := w.AddPod(w.Runtime(e2etest.Net1()), "other") // what is in the pod's own subnet gets pod-side SNAT, which is slow anyway
	if err := w.Node.WriteSysctl("net/ipv4/conf/all/rp_filter", "1"); err != nil {
		t.Fatal(err)
	}
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		pc, err := web.ListenPacket("udp"+fam.Suffix, net.JoinHostPort(fam.Any, "80"))
		if err != nil {
			t.Fatal(err)
		}
		defer pc.Close()
		own := e2etest.VirtualIP(fam)
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip addr add %s/%d dev eth0%s", own, own.BitLen(), e2etest.NoDAD(own.Is6())))
		for name, source := range map[string]netip.Addr{"node": own, "pod": fam.Pod(other)} {
			e2etest.MustRun(t, w.Client(), fmt.Sprintf("ip addr add %s/%d dev lo%s", source, source.BitLen(), e2etest.NoDAD(source.Is6())))
			if fam.Suffix == "6" {
				e2etest.LoadNFT(t, w.Node, fmt.Sprintf("table ip6 spoofed_%s {\nchain c {\ntype filter hook prerouting priority -300;\niifname \"eth0\" ip6 saddr %s drop\n}\n}\n", name, source))
			}
			send(t, w, source, fam, name)
		}
		send(t, w, fam.Client(w.Client()), fam, "client")
		if err := pc.SetReadDeadline(time.Now().Add(e2etest.AnswerTimeout)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		for got := ""; got != "client"; {
			n, from, err := pc.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("nothing came from the client")
			}
			if err != nil {
				t.Fatal(err)
			}
			if got = string(buf[:n]); got != "client" {
				t.Errorf("the pod got a packet of the wire from %s (%s)", from, got)
			}
		}
	})
}

// send sends a word to the hostPort from the client's network, with a source address.
func send(t *testing.T, w *e2etest.World, source netip.Addr, fam e2etest.Family, word string) {
	t.Helper()
	c, err := w.Client().DialFrom(context.Background(), "udp"+fam.Suffix, e2etest.At(source, 0), e2etest.At(fam.Node(w.Client()), 8080))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(word)); err != nil {
		t.Fatal(err)
	}
}
