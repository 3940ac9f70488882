// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func ref(pod string) attachments.ID {
	return attachments.ID{Network: "net", ContainerID: pod, IfName: "eth0"}
}

func (w *world) has(device string) bool {
	w.t.Helper()
	return strings.TrimSpace(w.run("ip -o link show dev "+device+" 2>/dev/null || true")) != ""
}

// CHECK sees whatever is taken away or changed.
func TestPrivilegedCheckSees(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	ifb := referenceIFB(ref("a"))
	damage := map[string][]string{
		BackendTBF: {
			"tc qdisc del dev v2 root",
			"tc qdisc replace dev v2 root tbf rate 1mbit burst 32k latency 25ms",
			"tc qdisc del dev " + ifb + " root",
			"ip link del " + ifb,
			"tc filter del dev v2 ingress prio 21504",
		},
		BackendEDT: {
			"tc qdisc del dev v2 root",
			"tc -n a qdisc del dev eth0 root",
			"tc qdisc replace dev v2 root tbf rate 1mbit burst 32k latency 25ms",
			"tc filter del dev v2 egress prio 21328",
			"tc filter del dev v2 ingress prio 21323",
			"tc -n a filter del dev eth0 egress prio 21328",
			"tc -n a qdisc del dev eth0 clsact",
		},
	}
	for backend, list := range damage {
		t.Run(backend, func(t *testing.T) {
			if backend == BackendEDT {
				require.Qdisc(t, "fq")
			}
			c := conf(2, `"backend":"`+backend+`",`+limits)
			for _, line := range list {
				w.add("a", c)
				must(t, w.check("a", c))
				w.run(line)
				if err := w.check("a", c); err == nil {
					t.Errorf("CHECK does not see %q", line)
				} else {
					w.wantCode(err, cnierr.CodeCheck)
				}
				w.del("a")
				w.run("tc qdisc del dev v2 root 2>/dev/null || true") // what a third party put there stays
			}
			w.add("a", c)
			w.wantCode(w.check("a", conf(2, `"backend":"`+backend+`","ingressRate":1000000,"ingressBurst":80000,`)), cnierr.CodeCheck)
			w.del("a")
			w.wantCode(w.check("a", c), cnierr.CodeCheck)
		})
	}
}

// A device that a third party has given a qdisc stays as it is. What the plugin made
// before it found out goes.
func TestPrivilegedConflict(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	w.add("a", conf(2, limits))
	w.del("a")
	w.run("tc qdisc add dev v2 root handle 5: tbf rate 1mbit burst 32k latency 25ms")
	before := w.snapshot()
	err := w.lab.Node.Do(func() error {
		_, err := w.plugin.Add(t.Context(), w.args("a", conf(2, `"backend":"tbf",`+limits)))
		return err
	})
	w.wantCode(err, cnierr.CodeConflict)
	if diff := netlab.DiffSoon(before, w.snapshot); diff != "" {
		t.Errorf("left behind:\n%s", diff)
	}
}

// DEL without namespace and device, and of what the upstream plugin has made.
func TestPrivilegedDelOfLost(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	c := conf(2, `"backend":"tbf",`+limits)
	w.add("a", c)
	w.run("ip link del v2")
	must(t, w.pods["a"].Delete())
	w.del("a")
	w.del("a")
	if w.has(referenceIFB(ref("a"))) {
		t.Error("the intermediate device is left")
	}

	theirs, others := referenceIFB(ref("b")), referenceIFB(ref("c"))
	w.run("ip link add "+theirs+" type ifb", "ip link add "+others+" type ifb")
	w.del("b")
	if w.has(theirs) || !w.has(others) {
		t.Error("DEL of an attachment of the reference plugin removed another device than its own")
	}
}

// An ADD that was killed before it made its device has not lost it to its DEL: another interface of the container has the name then.
func TestPrivilegedDelOfKilledBeforeTheDevice(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	killed, name := ref("a"), referenceIFB(ref("a"))
	killed.IfName = "eth1"
	w.do(func() error {
		return w.records.Begin(killed, w.pods["a"].Path, Name, section{Backend: BackendTBF, IFB: name, Egress: &Limit{Rate: 1 << 20, Burst: 1 << 20}})
	})
	c := conf(2, `"backend":"tbf",`+limits)
	w.add("a", c)
	if !w.has(name) {
		t.Fatalf("the device is not %s, which nobody has", name)
	}
	w.do(func() error {
		a := w.args("a", c)
		a.IfName = killed.IfName
		return w.plugin.Del(t.Context(), a)
	})
	must(t, w.check("a", c))
	w.del("a")
	if w.has(name) {
		t.Error("the device is left")
	}
}

// The first DEL on a node leaves as little as any: the redirection's qdisc goes with the datapath's filters on it.
func TestPrivilegedDelLeavesNoQdisc(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	before := w.run("tc qdisc show dev v2")
	w.add("a", conf(2, `"backend":"tbf",`+limits))
	w.del("a")
	if after := w.run("tc qdisc show dev v2"); after != before {
		t.Errorf("left: %s\nbefore: %s", after, before)
	}
}

// A record that was lost keeps nothing in the datapath.
func TestPrivilegedDelWithoutRecord(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	w.add("a", conf(2, limits))
	w.do(func() error { return w.records.Remove(ref("a"), Name) })
	w.del("a")
	w.do(func() error {
		dp, err := loader.OpenExisting(t.Context(), loader.Options{})
		if err != nil {
			return err
		}
		defer dp.Close()
		eps, err := dp.Endpoints(t.Context())
		if len(eps) != 0 {
			t.Errorf("endpoints %+v", eps)
		}
		shapes, serr := dp.RateLimits(t.Context())
		if len(shapes) != 0 {
			t.Errorf("limits %+v", shapes)
		}
		return errors.Join(err, serr)
	})
	w.del("a")
}

// CHECK is content with a pod of the upstream plugin, also where the runtime knows only a rate: there the burst is the number
// that was sent for it.
func TestPrivilegedCheckOfUpstream(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	// Limit and buffer as the upstream plugin sets them.
	for burst, tbf := range map[uint64]rtnl.TBF{
		80_000:         {Limit: 22_500, Buffer: 312_500},
		math.MaxInt32:  {Limit: 268_447_955, Buffer: 4_093_640_672},
		math.MaxUint32: {Limit: 536_883_411, Buffer: 3_892_314_080},
		maxBurstBits:   {Limit: 12_498, Buffer: 2_684_354_497},
	} {
		tbf.Rate = 500_000
		w.do(func() error {
			h, err := rtnl.New()
			if err != nil {
				return err
			}
			defer h.Close()
			v, err := h.LinkByName("v2")
			if err != nil {
				return err
			}
			return h.AddQdisc(v.Index, rtnl.Qdisc{Kind: rtnl.QdiscTBF, Handle: rootHandle(), Parent: rtnl.ParentRoot, TBF: &tbf}, false)
		})
		c := conf(2, fmt.Sprintf(`"runtimeConfig":{"bandwidth":{"ingressRate":4000000,"ingressBurst":%d}},`, burst))
		if err := w.check("a", c); err != nil {
			t.Errorf("burst of %d bits: %v", burst, err)
		}
		w.run("tc qdisc del dev v2 root")
		w.wantCode(w.check("a", c), cnierr.CodeCheck)
	}
}

// A pod that has gone may have left its path to another one, whose limits are not its own.
func TestPrivilegedDelOfFormerPath(t *testing.T) {
	require.Link(t, "macvlan")
	w := newWorld(t)
	w.run("ip link add m0 up type veth peer name m1")
	c := conf(2, `"backend":"tbf",`+limits)
	pod := func() *netlab.Pod {
		p := w.lab.Node.PodT(t, "a")
		w.run("ip link add link m0 name x0 type macvlan mode bridge", "ip link set x0 netns a name eth0", "ip -n a link set eth0 up")
		return p
	}
	first := pod()
	w.add("a", c)
	must(t, first.Delete())
	pod()
	second := w.args("b", c)
	second.Netns = "/run/netns/a"
	w.do(func() error { _, err := w.plugin.Add(t.Context(), second); return err })
	w.del("a")
	w.do(func() error { return w.plugin.Check(t.Context(), second) })
}

// Two interfaces of a container, which have one name in the upstream plugin.
func TestPrivilegedTwoInterfaces(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	w.run("ip link add v3 up type veth peer name net1 netns a", "ip -n a addr add 10.1.3.2/24 dev net1", "ip -n a link set net1 up")
	c := conf(2, `"backend":"tbf",`+limits)
	second := w.args("a", conf(3, `"backend":"tbf",`+limits))
	second.IfName = "net1"
	w.add("a", c)
	w.do(func() error { _, err := w.plugin.Add(t.Context(), second); return err })
	w.del("a")
	must(t, w.lab.Node.Do(func() error { return w.plugin.Check(t.Context(), second) }))
	w.do(func() error { return w.plugin.Del(t.Context(), second) })
	if out := w.run("ip -o link show type ifb"); out != "" {
		t.Errorf("left: %s", out)
	}
}

func TestPrivilegedGC(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	w.pod("b", 3)
	for pod, n := range map[string]int{"a": 2, "b": 3} {
		w.add(pod, conf(n, `"backend":"tbf",`+limits))
	}
	must(t, w.check("b", conf(3, `"backend":"tbf",`+limits)))
	// Of the upstream plugin: one without a pod, one that serves.
	dead, alive := hashedName("dead"), hashedName("alive")
	w.run("ip link add "+dead+" up type ifb", "ip link add "+alive+" up type ifb", "ip link add ifb7 type ifb",
		"ip link add s0 type veth peer name s1", "tc qdisc add dev s0 ingress",
		"tc filter add dev s0 parent ffff: protocol all prio 1 u32 match u32 0 0 action mirred egress redirect dev "+alive)
	w.gc(`{"containerID":"b","ifname":"eth0"}`)
	for device, want := range map[string]bool{
		referenceIFB(ref("a")): false, referenceIFB(ref("b")): true, dead: false, alive: true, "ifb7": true,
	} {
		if w.has(device) != want {
			t.Errorf("device %s is there: %t", device, !want)
		}
	}
	must(t, w.check("b", conf(3, `"backend":"tbf",`+limits)))
	if q := w.run("tc qdisc show dev v2 root"); strings.Contains(q, "tbf") {
		t.Errorf("left on the device of an invalid attachment: %s", q)
	}
}

// Devices without an end on the node: everything is inside the pod.
func TestPrivilegedInside(t *testing.T) {
	for _, kind := range []string{"macvlan", "ipvlan"} {
		for _, backend := range []string{BackendTBF, BackendEDT} {
			t.Run(kind+"/"+backend, func(t *testing.T) {
				require.Link(t, kind)
				if backend == BackendEDT {
					require.Qdisc(t, "fq")
				}
				w := newWorld(t)
				w.run("ip link add m0 up type veth peer name m1", "ip link set m1 up")
				for i, name := range []string{"a", "b"} {
					w.pods[name] = w.lab.Node.PodT(t, name)
					must(t, w.pods[name].WriteSysctl("net/ipv6/conf/default/accept_dad", "0"))
					mode := map[string]string{"macvlan": "bridge", "ipvlan": "l2"}[kind]
					w.run(fmt.Sprintf("ip link add link m0 name x%d type %s mode %s", i, kind, mode),
						fmt.Sprintf("ip link set x%d netns %s name eth0", i, name), "ip -n "+name+" link set lo up",
						fmt.Sprintf("ip -n %s addr add 10.1.2.%d/24 dev eth0", name, i+2),
						fmt.Sprintf("ip -n %s addr add fd00:2::%d/64 dev eth0 nodad", name, i+2), "ip -n "+name+" link set eth0 up")
				}
				inside(t, w, conf(2, `"backend":"`+backend+`",`+limits))
			})
		}
	}
}

func inside(t *testing.T, w *world, c []byte) {
	t.Helper()
	state := func() string {
		return w.run("ip -n a -o link | cut -d: -f2", "tc -n a qdisc show", "ip -o link show type ifb")
	}
	before := state()
	w.add("a", c)
	w.add("a", c)
	must(t, w.check("a", c))
	for _, addr := range [][2]string{{"10.1.2.2", "10.1.2.3"}, {"fd00:2::2", "fd00:2::3"}} {
		wantCarried(t, "ingress of "+addr[0], w.pods["b"].NS, w.pods["a"].NS, addr[0], referenceIFB(ref("a")), ingressMbit)
		wantCarried(t, "egress to "+addr[1], w.pods["a"].NS, w.pods["b"].NS, addr[1], "eth0", egressMbit)
	}
	w.run("tc -n a qdisc del dev eth0 root")
	w.wantCode(w.check("a", c), cnierr.CodeCheck)
	w.del("a")
	w.del("a")
	if after := state(); after != before {
		t.Errorf("left behind: %s\nbefore: %s", after, before)
	}
}

// The same, with the datapath loaded after the pod was limited: nothing of it knows the pod, and CHECK wants nothing of it.
func TestPrivilegedLoadedLater(t *testing.T) {
	w := newWorld(t)
	w.tables = true
	w.pod("a", 2)
	c := conf(2, limits)
	w.add("a", c)
	must(t, w.check("a", c))
	var dp *loader.Datapath
	w.do(func() (err error) {
		dp, err = loader.Open(t.Context(), loader.Options{Loader: ebpfload.InProcess{}})
		return err
	})
	defer dp.Close()
	must(t, w.check("a", c))
	w.do(func() error { // a later plugin of the chain, which the limits know nothing of
		ep, err := loader.Resolve(t.Context(), w.pods["a"].Path, "eth0")
		if err != nil {
			return err
		}
		ep.Ref, ep.Addrs = ref("a"), []netip.Prefix{netip.MustParsePrefix("10.1.2.2/24")}
		return dp.Enable(t.Context(), ep, loader.FeatureAdmit)
	})
	w.wantCode(w.check("a", c), cnierr.CodeCheck)
	w.del("a")
}

// A node that asks for netfilter, and a network that has loaded the datapath nevertheless: its fast path must not lead the
// limited pod's flows past the queues.
func TestPrivilegedOtherBackEnd(t *testing.T) {
	w := newWorld(t)
	w.do(func() error {
		dp, err := loader.Open(t.Context(), loader.Options{Loader: ebpfload.InProcess{}})
		if err != nil {
			return err
		}
		return dp.Close()
	})
	w.tables = true
	w.pod("a", 2)
	c := conf(2, limits)
	w.add("a", c)
	must(t, w.check("a", c))
	w.do(func() error {
		dp, err := loader.OpenExisting(t.Context(), loader.Options{})
		if err != nil {
			return err
		}
		defer dp.Close()
		s, err := dp.Status(t.Context())
		if err == nil && (len(s.Endpoints) != 1 || !slices.Equal(s.Endpoints[0].Features, []string{"queue-rx", "queue-tx"})) {
			t.Errorf("endpoints %+v", s.Endpoints)
		}
		return err
	})
	w.del("a")
}
