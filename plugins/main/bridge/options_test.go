// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
)

func TestPrivilegedDefaultRouteWithoutGateway(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	r.ipam.Answer = func(n int) *types100.Result {
		x := answer46(n)
		def := &types.Route{Dst: fake.CIDR("0.0.0.0/0"), MTU: 1300}
		x.Routes = []*types.Route{def, {Dst: fake.CIDR("0.0.0.0/0"), MTU: 1300}, {Dst: fake.CIDR("::/0")}}
		return x
	}
	a := call("1.1.0", "c1", "eth0", pod.Path, life)
	res := r.mustAdd(a)
	got := r.state(pod.NS, "eth0")
	for _, want := range []string{"route 0.0.0.0/0 via 10.1.0.1", "route ::/0 via fd00::1"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %v", want, got)
		}
	}
	r.within(pod.NS, func(h *rtnl.Handle) error {
		rs, err := h.Routes(rtnl.FamilyV4)
		if err == nil && !slices.ContainsFunc(rs, func(x rtnl.Route) bool { return x.Dst.Bits() == 0 && x.MTU == 1300 }) {
			t.Errorf("the route's MTU is not applied: %+v", rs)
		}
		return err
	})
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestPrivilegedForceAddress(t *testing.T) {
	r := newRig(t)
	nets := []string{"10.1.0.2/16 10.1.0.1", "10.2.0.2/16 10.2.0.1", "fd01::2/64 fd01::1", "fd01::3/48 fd01::9", "10.2.0.3/16 10.2.0.1"}
	r.ipam.Answer = func(n int) *types100.Result {
		f := strings.Fields(nets[n-1])
		return &types100.Result{IPs: []*types100.IPConfig{fake.IP(f[0], f[1])}}
	}
	steps := []struct {
		force bool
		code  uint
		want  []string
	}{
		{false, 0, []string{"10.1.0.1/16"}},
		{false, cnierr.CodeConflict, []string{"10.1.0.1/16"}},
		{false, 0, []string{"10.1.0.1/16", "fd01::1/64"}}, // another family is no conflict
		{true, 0, []string{"10.1.0.1/16", "fd01::9/48"}},
		{true, 0, []string{"10.2.0.1/16", "fd01::9/48"}},
	}
	for i, s := range steps {
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		_, err := r.add(call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, fmt.Sprintf(`"bridge":"br0","isGateway":true,"forceAddress":%v,"ipam":{"type":"fake"}`, s.force)))
		if s.code != 0 {
			fake.WantCode(t, err, s.code, "br0", "10.1.0.1/16", "10.2.0.1")
		} else if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		var got []string
		for _, line := range r.state(r.node.NS, "br0") {
			if f := strings.Fields(line); f[0] == "addr" {
				got = append(got, f[1])
			}
		}
		if diff := cmp.Diff(s.want, got); diff != "" {
			t.Errorf("step %d: addresses of the bridge (-want +got):\n%s", i, diff)
		}
	}
}

func TestPrivilegedThreeSubnets(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	r.ipam.Answer = func(int) *types100.Result { // no gateways: the first address of each subnet
		return &types100.Result{IPs: []*types100.IPConfig{fake.IP("10.1.0.7/16", ""), fake.IP("10.2.0.7/24", ""), fake.IP("fd01::7/64", "")}}
	}
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","isDefaultGateway":true,"ipam":{"type":"fake"}`)
	res := r.mustAdd(a)
	got := r.state(r.node.NS, "br0")
	for _, want := range []string{"addr 10.1.0.1/16 tentative false", "addr 10.2.0.1/24 tentative false", "addr fd01::1/64 tentative false"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %v", want, got)
		}
	}
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestPrivilegedPortAndBridgeFlags(t *testing.T) {
	r := newRig(t)
	tests := []struct {
		conf string
		port rtnl.Port
		prom bool
	}{
		{`"bridge":"br1"`, rtnl.Port{}, false},
		{`"bridge":"br2","hairpinMode":true`, rtnl.Port{Hairpin: true}, false},
		{`"bridge":"br3","portIsolation":true,"promiscMode":true`, rtnl.Port{Isolated: true}, true},
		{`"bridge":"br1","promiscMode":true`, rtnl.Port{}, true}, // on an existing bridge
	}
	for i, tt := range tests {
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		a := call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, tt.conf)
		res := r.mustAdd(a)
		r.host(func(h *rtnl.Handle) error {
			host, err := h.LinkByName(res.Interfaces[1].Name)
			if err != nil {
				return err
			}
			br, err := h.LinkByIndex(host.MasterIndex)
			if *host.Port != tt.port || br.Promisc != tt.prom {
				t.Errorf("%s: port %+v, promiscuous %v", tt.conf, host.Port, br.Promisc)
			}
			return err
		})
		if err := r.check(a, res); err != nil {
			t.Errorf("CHECK %s: %v", tt.conf, err)
		}
	}
}

func TestPrivilegedDisableContainerInterface(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","disableContainerInterface":true`)
	res := r.mustAdd(a)
	if got := r.state(pod.NS, "eth0"); got[0] != "eth0 veth mtu 1500 up false oper down" {
		t.Errorf("pod: %v", got)
	}
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestPrivilegedMAC(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	const mac = "02:00:00:00:be:ef"
	res := r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","runtimeConfig":{"mac":"`+mac+`"}`))
	if got := res.Interfaces[2].Mac; got != mac {
		t.Errorf("MAC %s", got)
	}
}

// TestPrivilegedBridgeMACStays watches the bridge's address while pods come and
// go: pods keep it in their neighbour tables.
func TestPrivilegedBridgeMACStays(t *testing.T) {
	r := newRig(t)
	mac := ""
	r.host(func(h *rtnl.Handle) error {
		if err := h.AddBridge(rtnl.BridgeSpec{Name: "br0", Up: true}); err != nil { // an operator's, that follows its ports
			return err
		}
		br, err := h.LinkByName("br0")
		mac = br.MAC.String()
		return err
	})
	for i := range 6 {
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		a := call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, life)
		res := r.mustAdd(a)
		if got := res.Interfaces[0].Mac; got != mac {
			t.Errorf("ADD %d: the result says that the bridge's address changed from %s to %s", i, mac, got)
		}
		r.host(func(h *rtnl.Handle) error {
			br, err := h.LinkByName("br0")
			if got := br.MAC.String(); got != mac {
				t.Errorf("ADD %d: the bridge's address changed from %s to %s", i, mac, got)
			}
			return err
		})
		if i%2 == 0 {
			if err := r.del(a); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What a pod's device is told of neighbours and other owners, with and without an IPv6 address.
func TestPrivilegedPodSysctls(t *testing.T) {
	for name, answer := range map[string]func(int) *types100.Result{"IPv4": answer4, "IPv6": answer6} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.ipam.Answer = answer
			pod := r.node.PodT(t, "p1")
			r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","isGateway":true,"ipam":{"type":"fake"}`))
			if err := pod.Do(func() error {
				for key, want := range map[string]string{"net/ipv4/conf/eth0/arp_notify": "1", "net/ipv6/conf/eth0/accept_dad": "0"} {
					got, err := sysctl.Get(key)
					if err != nil {
						return err
					}
					if got != want {
						t.Errorf("%s is %s, want %s", key, got, want)
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPrivilegedDAD(t *testing.T) {
	r := newRig(t)
	r.ipam.Answer = answer6
	pod := r.node.PodT(t, "p1")
	start := time.Now()
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","isGateway":true,"enabledad":true,"ipam":{"type":"fake"}`)
	r.mustAdd(a)
	t.Logf("ADD with duplicate address detection took %v", time.Since(start))
	if got := r.state(pod.NS, "eth0"); !slices.Contains(got, "addr fd00::2/64 tentative false") {
		t.Errorf("pod: %v", got)
	}
	if err := pod.Do(func() error {
		v, err := sysctl.Get("net/ipv6/conf/eth0/accept_dad")
		if v != "1" {
			t.Errorf("accept_dad = %q", v)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r.ipam.Answer = func(int) *types100.Result { return answer6(1) } // the same address on the same bridge
	twin := r.node.PodT(t, "p2")
	_, err := r.add(call("1.1.0", "c2", "eth0", twin.Path, `"bridge":"br0","isGateway":true,"enabledad":true,"ipam":{"type":"fake"}`))
	fake.WantCode(t, err, cnierr.CodeConflict, "fd00::2")
	if got := r.links(twin.NS); len(got) != 1 {
		t.Errorf("left in the twin: %v", got)
	}
}

// An address that another host has by the time of a later detection: it is there, but the kernel does not use it.
func TestPrivilegedCheckSeesFailedDAD(t *testing.T) {
	r := newRig(t)
	r.ipam.Answer = func(int) *types100.Result { return answer6(1) }
	const conf = `"bridge":"br0","isGateway":true,"ipam":{"type":"fake"}`
	pod, twin := r.node.PodT(t, "p1"), r.node.PodT(t, "p2")
	a := call("1.1.0", "c1", "eth0", pod.Path, conf+`,"enabledad":true`)
	res := r.mustAdd(a)
	if err := r.check(a, res); err != nil {
		t.Fatal(err)
	}
	r.mustAdd(call("1.1.0", "c2", "eth0", twin.Path, conf)) // with the same address, undetected
	pod.NS.IPT(t, "link set eth0 down")
	pod.NS.IPT(t, "link set eth0 up")
	for end := time.Now().Add(netlab.Patient(10 * time.Second)); pod.NS.IPT(t, "-6 addr show dev eth0 dadfailed") == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the kernel does not find the twin: %s", pod.NS.IPT(t, "-6 addr"))
		}
	}
	fake.WantCode(t, r.check(a, res), cnierr.CodeCheck, "fd00::2/64", "duplicate address detection")
}

func TestPrivilegedParallel(t *testing.T) {
	r := newRig(t)
	const n = 24
	var wg sync.WaitGroup
	pods := make([]*netlab.Pod, n)
	for i := range n {
		pods[i] = r.node.PodT(t, fmt.Sprintf("p%d", i))
	}
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := r.add(call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pods[i].Path, life)); err != nil {
				t.Errorf("ADD %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	if len(r.dp.Held) != n {
		t.Errorf("%d endpoints", len(r.dp.Held))
	}
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := r.del(call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pods[i].Path, life)); err != nil {
				t.Errorf("DEL %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	r.mustBeClean(pods...)
}

// TestPrivilegedIPv6TurnedOn begins with a pod whose runtime has turned IPv6 off.
func TestPrivilegedIPv6TurnedOn(t *testing.T) {
	r := newRig(t)
	r.ipam.Answer = answer46
	pod := r.node.PodT(t, "p1")
	if err := pod.Do(func() error {
		return errors.Join(sysctl.Set("net/ipv6/conf/all/disable_ipv6", "1"), sysctl.Set("net/ipv6/conf/default/disable_ipv6", "1"))
	}); err != nil {
		t.Fatal(err)
	}
	r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, life))
	if got := r.state(pod.NS, "eth0"); !slices.Contains(got, "addr fd00::2/64 tentative false") || !slices.Contains(got, "route ::/0 via fd00::1") {
		t.Errorf("pod: %v", got)
	}
}
