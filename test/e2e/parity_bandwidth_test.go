// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const megabit = 1_000_000

// limits are keys of the bandwidth plugin.
func limits(direction string, rate, burst int) attributes {
	return attributes{direction + "Rate": rate, direction + "Burst": burst}
}

func rates() scene {
	return scene{
		group: "bandwidth",
		build: func(s *stage) {
			static := func(a attributes) *netlab.Runtime {
				return s.runtime(network{plugins: []string{"bandwidth"}, bandwidth: a})
			}
			in, out := limits("ingress", 8*megabit, megabit/5), limits("egress", 8*megabit, megabit/5)
			s.limited(static(in), "in", nil)
			s.limited(static(out), "out", nil)
			s.limited(static(nil), "runtime", merged(in, out))
			s.limited(static(limits("ingress", 0, 0)), "hidden", in)
			s.limited(static(nil), "free", nil)
			c := s.Clients[0]
			var client []string
			for _, fam := range families() {
				a := fam.client(c)
				client = append(client, netip.PrefixFrom(a, a.BitLen()).String())
			}
			s.limited(static(merged(merged(in, out), attributes{"unshapedSubnets": client})), "but", nil)
			s.limited(static(merged(merged(in, out), attributes{"shapedSubnets": client})), "only", nil)
			drain(s.t, s.Client())
		},
		then: []behaviour{
			pace("ingressRate, toward the pod", "client", "in"),
			pace("ingressRate, from the pod", "in", "client"),
			pace("egressRate, from the pod", "out", "client"),
			pace("egressRate, toward the pod", "client", "out"),
			pace("of the runtime, toward the pod", "client", "runtime"),
			pace("of the runtime, from the pod", "runtime", "client"),
			pace("of the runtime, with a static key of 0", "client", "hidden"),
			pace("none, toward the pod", "client", "free"),
			pace("unshapedSubnets, toward the pod from one of them", "client", "but"),
			pace("unshapedSubnets, from the pod to one of them", "but", "client"),
			pace("unshapedSubnets, toward the pod from elsewhere", "free", "but"),
			pace("unshapedSubnets, from the pod to elsewhere", "but", "free"),
			pace("shapedSubnets, toward the pod from one of them", "client", "only"),
			pace("shapedSubnets, from the pod to one of them", "only", "client"),
			pace("shapedSubnets, toward the pod from elsewhere", "free", "only"),
			pace("shapedSubnets, from the pod to elsewhere", "only", "free"),
			once("CHECK", func(s *stage) string { return said("CHECK", s.pods["in"].check()) }),
			once("CHECK after the limit was removed", func(s *stage) string {
				p := s.pods["in"]
				_ = s.Node.Do(func() error { return run("tc qdisc del dev " + p.hostEnd() + " root") })
				return said("CHECK", p.check())
			}),
			once("DEL", func(s *stage) string { return said("DEL", s.pods["out"].tryDel()) }),
			once("devices after DEL", func(s *stage) string {
				for _, name := range []string{"runtime", "but", "only"} {
					_ = s.pods[name].tryDel()
				}
				return fmt.Sprintf("%d", len(s.snapshot().Grep("link bwp")))
			}),
		},
	}
}

// limited is a pod with limits of the runtime, which takes what it is sent.
func (s *stage) limited(rt *netlab.Runtime, name string, runtime attributes) {
	s.t.Helper()
	p := s.newPod(rt, name)
	if runtime != nil {
		p.att.Capabilities = map[string]any{"bandwidth": runtime}
	}
	p.mustAdd()
	s.pods[name] = p
	drain(s.t, p)
}

// drain takes what it is sent at port 90, and says when that was all.
func drain(t testing.TB, ns place) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := ns.Listen(network, ":90")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if _, err := io.Copy(io.Discard, c); err == nil {
						_, _ = io.WriteString(c, "all\n")
					}
				}()
			}
		}()
	}
}

// pace words whether a stream is held back. A limit holds back every one, and a
// busy machine some of the others: so one that is fast decides, and a slow one
// counts only when a pod without limits is fast at the same time.
func pace(name, from, to string) behaviour {
	return behaviour{name: name, see: func(s *stage, fam family) string {
		addr := fam.client(s.Client())
		if to != "client" {
			addr = fam.pod(s.pods[to])
		}
		fast := func(from place, to netip.Addr) (bool, error) {
			got, err := rate(from, "tcp"+fam.suffix, at(to, 90))
			return got > 10*megabit, err
		}
		for tries, slow := 0, 0; tries < 12 && slow < 3; tries++ {
			switch ok, err := fast(s.place(from), addr); {
			case err != nil:
				return failure(err)
			case ok:
				return "not limited"
			}
			switch ok, err := fast(s.Client(), fam.pod(s.pods["free"])); {
			case err != nil:
				return "without limits: " + failure(err)
			case ok:
				slow++
			}
		}
		return "limited" // how exactly, the benchmarks measure
	}}
}

// rate sends 400 kB and returns bits a second, from before the first byte is
// sent to after the last has come: no queue on the way makes it look faster.
func rate(from place, network, addr string) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const size = 400_000
	c, err := from.DialContext(ctx, network, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(netlab.Patient(20 * time.Second))); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := c.Write(make([]byte, size)); err != nil {
		return 0, err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	var end string
	if _, err := fmt.Fscan(c, &end); err != nil {
		return 0, err
	}
	return size * 8 / time.Since(start).Seconds(), nil
}
