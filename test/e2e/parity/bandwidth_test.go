// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

func rates() parityCase {
	return parityCase{
		group: "bandwidth",
		build: func(s *stage) {
			static := func(a e2etest.Attributes) *netlab.Runtime {
				return s.runtime(e2etest.Network{Plugins: []string{"bandwidth"}, Bandwidth: a})
			}
			in, out := e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, e2etest.Megabit/5), e2etest.BandwidthLimits("egress", 8*e2etest.Megabit, e2etest.Megabit/5)
			s.limited(static(in), "in", nil)
			s.limited(static(out), "out", nil)
			s.limited(static(nil), "runtime", e2etest.Merge(in, out))
			s.limited(static(e2etest.BandwidthLimits("ingress", 0, 0)), "hidden", in)
			s.limited(static(nil), "free", nil)
			c := s.Clients[0]
			var client []string
			for _, fam := range e2etest.Families() {
				a := fam.Client(c)
				client = append(client, netip.PrefixFrom(a, a.BitLen()).String())
			}
			s.limited(static(e2etest.Merge(e2etest.Merge(in, out), e2etest.Attributes{"unshapedSubnets": client})), "but", nil)
			s.limited(static(e2etest.Merge(e2etest.Merge(in, out), e2etest.Attributes{"shapedSubnets": client})), "only", nil)
			e2etest.ServeSink(s.T, s.Client())
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
			once("CHECK", func(s *stage) string { return said("CHECK", s.pods["in"].Check()) }),
			once("CHECK after the limit was removed", func(s *stage) string {
				p := s.pods["in"]
				_ = s.Node.Do(func() error { return run("tc qdisc del dev " + p.HostVeth() + " root") })
				return said("CHECK", p.Check())
			}),
			once("DEL", func(s *stage) string { return said("DEL", s.pods["out"].TryDel()) }),
			once("devices after DEL", func(s *stage) string {
				for _, name := range []string{"runtime", "but", "only"} {
					_ = s.pods[name].TryDel()
				}
				return fmt.Sprintf("%d", len(s.Snapshot().Grep("link bwp")))
			}),
		},
	}
}

// limited is a pod with limits of the runtime, which takes what it is sent.
func (s *stage) limited(rt *netlab.Runtime, name string, runtime e2etest.Attributes) {
	s.T.Helper()
	p := s.NewPod(rt, name)
	if runtime != nil {
		p.Attachment.Capabilities = map[string]any{"bandwidth": runtime}
	}
	p.MustAdd()
	s.pods[name] = p
	e2etest.ServeSink(s.T, p)
}

// pace words whether a stream is held back. A limit holds back every one, and a
// busy machine some of the others: so one that is fast decides, and a slow one
// counts only when a pod without limits is fast at the same time.
func pace(name, from, to string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string {
		addr := fam.Client(s.Client())
		if to != "client" {
			addr = fam.Pod(s.pods[to])
		}
		fast := func(from e2etest.Place, to netip.Addr) (bool, error) {
			got, err := e2etest.MeasureRate(from, "tcp"+fam.Suffix, e2etest.At(to, 90))
			return got > 10*e2etest.Megabit, err
		}
		for tries, slow := 0, 0; tries < 12 && slow < 3; tries++ {
			switch ok, err := fast(s.place(from), addr); {
			case err != nil:
				return failure(err)
			case ok:
				return "not limited"
			}
			switch ok, err := fast(s.Client(), fam.Pod(s.pods["free"])); {
			case err != nil:
				return "without limits: " + failure(err)
			case ok:
				slow++
			}
		}
		return "limited" // how exactly, the benchmarks measure
	}}
}
