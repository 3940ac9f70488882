// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"net/netip"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// TestPrivilegedCheckSees breaks one thing at a time.
func TestPrivilegedCheckSees(t *testing.T) {
	const conf = `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"ebpf","macspoofchk":true,"mtu":1400,"portIsolation":true,"ipam":{"type":"fake"}`
	link := func(r *rig, ns *netlab.NS, name string, f func(h *rtnl.Handle, l rtnl.Link) error) {
		r.within(ns, func(h *rtnl.Handle) error {
			l, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			return f(h, l)
		})
	}
	p := netip.MustParsePrefix
	type scene struct {
		*rig
		pod *netlab.Pod
		res *types100.Result
	}
	host := func(s scene) string { return s.res.Interfaces[1].Name }
	tests := []struct {
		name  string
		spoil func(s scene)
		says  string
	}{
		{"nothing", func(scene) {}, ""},
		{"pod's end gone", func(s scene) {
			link(s.rig, s.pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error { return h.DelLink(l.Index) })
		}, "eth0 in the pod does not exist"},
		{"pod's end down", func(s scene) {
			link(s.rig, s.pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error { return h.SetDown(l.Index) })
		}, "eth0 is down"},
		{"other MAC", func(s scene) {
			link(s.rig, s.pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error { return h.SetMAC(l.Index, veth.RandomMAC()) })
		}, "eth0 has the address"},
		{"address gone", func(s scene) {
			link(s.rig, s.pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error {
				return h.DelAddr(rtnl.Addr{LinkIndex: l.Index, Prefix: p("10.1.0.3/16")})
			})
		}, "does not have the address 10.1.0.3/16"},
		{"route gone", func(s scene) {
			link(s.rig, s.pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error {
				return h.DelRoute(rtnl.Route{LinkIndex: l.Index, Dst: p("0.0.0.0/0")})
			})
		}, "no route to"},
		{"route moved to another table", func(s scene) {
			link(s.rig, s.pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error {
				r := rtnl.Route{LinkIndex: l.Index, Dst: p("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.1.0.1")}
				if err := h.DelRoute(r); err != nil {
					return err
				}
				r.Table = 100
				return h.AddRoute(r)
			})
		}, ""},
		{"host end out of the bridge", func(s scene) {
			link(s.rig, s.node.NS, host(s), func(h *rtnl.Handle, l rtnl.Link) error { return h.SetMaster(l.Index, 0) })
		}, "is not a port of br0"},
		{"host end down", func(s scene) {
			link(s.rig, s.node.NS, host(s), func(h *rtnl.Handle, l rtnl.Link) error { return h.SetDown(l.Index) })
		}, "is down"},
		{"hairpin on", func(s scene) {
			link(s.rig, s.node.NS, host(s), func(h *rtnl.Handle, l rtnl.Link) error {
				return h.SetPort(l.Index, rtnl.Port{Hairpin: true, Isolated: true})
			})
		}, "hairpin mode"},
		{"isolation off", func(s scene) {
			link(s.rig, s.node.NS, host(s), func(h *rtnl.Handle, l rtnl.Link) error { return h.SetPort(l.Index, rtnl.Port{}) })
		}, "isolation"},
		{"MTU", func(s scene) {
			link(s.rig, s.node.NS, host(s), func(h *rtnl.Handle, l rtnl.Link) error { return h.SetMTU(l.Index, 1280) })
		}, "MTU 1280, not 1400"},
		{"gateway address gone", func(s scene) {
			link(s.rig, s.node.NS, "br0", func(h *rtnl.Handle, l rtnl.Link) error {
				return h.DelAddr(rtnl.Addr{LinkIndex: l.Index, Prefix: p("10.1.0.1/16")})
			})
		}, "gateway address 10.1.0.1/16"},
		{"forwarding off", func(s scene) {
			if err := s.node.Do(func() error { return sysctl.Set("net/ipv4/ip_forward", "0") }); err != nil {
				s.t.Fatal(err)
			}
		}, "forwarding is off"},
		{"forwarding off on the bridge alone", func(s scene) {
			if err := s.node.Do(func() error { return sysctl.Set("net/ipv4/conf/br0/forwarding", "0") }); err != nil {
				s.t.Fatal(err)
			}
		}, "forwarding is off: net/ipv4/conf/br0/forwarding"},
		{"bridge gone", func(s scene) {
			link(s.rig, s.node.NS, "br0", func(h *rtnl.Handle, l rtnl.Link) error { return h.DelLink(l.Index) })
		}, "bridge br0 does not exist"},
		{"bridge is another", func(s scene) {
			link(s.rig, s.node.NS, "br0", func(h *rtnl.Handle, l rtnl.Link) error { return h.SetMAC(l.Index, veth.RandomMAC()) })
		}, "br0 has the address"},
		{"endpoint gone", func(s scene) { s.dp.Held = nil }, "masquerading differs"},
		{"datapath gone", func(s scene) { s.dp.Loaded = false }, "not masqueraded"},
		{"spoof check unhooked", func(s scene) { s.nft.chains[spoofHook] = nil }, "not hooked"},
		{"spoof check without drop", func(s scene) { n := spoofNamesOf(ref1); s.nft.chains[n.mac] = s.nft.chains[n.mac][:1] }, "incomplete"},
		{"delegate objects", func(s scene) { s.ipam.VerbErr = errors.New("not mine") }, "not mine"},
		{"record lost", func(s scene) {
			if err := s.dir.Remove(ref1, Name); err != nil {
				s.t.Fatal(err)
			}
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newNFTablesRig(t)
			pod := r.node.PodT(t, "p1")
			a := call("1.0.0", "c1", "eth0", pod.Path, conf)
			res := r.mustAdd(a)
			tt.spoil(scene{r, pod, res})
			err := r.check(a, res)
			switch {
			case tt.says == "" && err != nil:
				t.Errorf("CHECK: %v", err)
			case tt.says == "not mine":
				fake.WantCode(t, err, cnierr.CodeKernel, tt.says)
			case tt.says != "":
				fake.WantCode(t, err, cnierr.CodeCheck, tt.says)
			}
		})
	}
}

func TestPrivilegedCheckPromisc(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","promiscMode":true`)
	res := r.mustAdd(a)
	r.host(func(h *rtnl.Handle) error {
		br, err := h.LinkByName("br0")
		if err != nil {
			return err
		}
		return h.SetPromisc(br.Index, false)
	})
	fake.WantCode(t, r.check(a, res), cnierr.CodeCheck, "promiscuous")
}

func TestPrivilegedCheckNeedsPrevResult(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0"`)
	fake.WantCode(t, r.verb(r.plug.Check, a), cnierr.CodeConfig, "prevResult")
	a.Netns = "/run/netns/gone"
	fake.WantCode(t, r.check(a, &types100.Result{CNIVersion: "1.1.0"}), cnierr.CodeNetNS, "gone")
}
