// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

const (
	byName   = `"device":"nic0"`
	withIPAM = byName + `,"ipam":{"type":"fake"}`
)

// A device goes to the pod with addresses, up, its own name in its alias, and
// comes back as it was.
func TestPrivilegedLend(t *testing.T) {
	t.Parallel()
	e := newEnv(t, withIPAM+`,"dns":{"nameservers":["10.1.0.1"]}`)
	res := e.mustAdd("a")
	want := []*types100.Interface{{Name: "eth0", Mac: "02:00:00:00:00:07", Sandbox: e.pod.Path, Mtu: 1400}}
	if d := cmp.Diff(want, res.Interfaces); d != "" {
		t.Errorf("interfaces (- want, + got):\n%s", d)
	}
	if len(res.IPs) != 2 || *res.IPs[0].Interface != 0 || *res.IPs[1].Interface != 0 || res.DNS.Nameservers[0] != "10.1.0.1" {
		t.Errorf("result %+v", res)
	}
	if got := e.links(e.pod.NS); got["eth0"] != "nic0" {
		t.Errorf("devices of the pod: %v", got)
	}
	if got := e.ip(e.pod.NS, "addr show eth0"); !strings.Contains(got, "UP") || !strings.Contains(got, "10.1.0.2/24") || !strings.Contains(got, "fd00::2/64") {
		t.Errorf("eth0 in the pod: %s", got)
	}
	if _, there := e.links(e.node.NS)["nic0"]; there {
		t.Error("nic0 is still on the host")
	}
	if err := e.check("a", res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	e.mustDel("a")
	e.home()
	if got := e.ip(e.node.NS, "addr show nic0"); !strings.Contains(got, "state DOWN") || strings.Contains(got, "inet") {
		t.Errorf("nic0 after DEL should be down without addresses: %s", got)
	}
	e.mustDel("a")
	e.home()
}

// Without IPAM the device is only moved and set up.
func TestPrivilegedLayer2(t *testing.T) {
	t.Parallel()
	e := newEnv(t, byName)
	res := e.mustAdd("a")
	if len(res.IPs) != 0 || len(e.ipam.calls) != 0 {
		t.Errorf("result %v, IPAM calls %v", res, e.ipam.calls)
	}
	if got := e.ip(e.pod.NS, "link show eth0"); !strings.Contains(got, ",UP") {
		t.Errorf("eth0 in the pod: %s", got)
	}
	if err := e.check("a", res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	e.mustDel("a")
	e.home()
}

// Each of these configurations finds nic0, and every key finds it in the order
// of precedence.
func TestPrivilegedWaysToName(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, conf, pci string }{
		{"hwaddr", `"hwaddr":"02:00:00:00:00:07"`, ""},
		{"hwaddr in capitals", `"hwaddr":"02-00-00-00-00-07"`, ""},
		{"kernelpath", `"kernelpath":"/sys/devices/pci0000:00/0000:00:04.0"`, ""},
		{"pciBusID", `"pciBusID":"0000:00:04.0"`, "0000:00:04.0"},
		{"pciBusID of a virtio device", `"pciBusID":"0000:00:05.0"`, "0000:00:05.0"},
		{"deviceID of a PCI device", `"pciBusID":"0000:00:09.0","runtimeConfig":{"deviceID":"0000:00:04.0"}`, "0000:00:04.0"},
		{"deviceID of the auxiliary bus", `"pciBusID":"0000:00:09.0","runtimeConfig":{"deviceID":"mlx5_core.sf.2"}`, ""},
		{"device before deviceID", `"device":"nic0","runtimeConfig":{"deviceID":"0000:00:09.0"}`, ""},
		{"hwaddr before kernelpath", `"hwaddr":"02:00:00:00:00:07","kernelpath":"/sys/devices/x"`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, tt.conf)
			fakeSysfs(t, e.root)
			res := e.mustAdd("a")
			if res.Interfaces[0].Mac != "02:00:00:00:00:07" {
				t.Errorf("lent %+v", res.Interfaces[0])
			}
			if tt.pci != "" && res.Interfaces[0].PciID != tt.pci {
				t.Errorf("pciID %q, want %q", res.Interfaces[0].PciID, tt.pci)
			}
			e.mustDel("a")
			e.home()
		})
	}
}

// DEL needs neither the namespace nor the configuration, and its order with
// others does not matter.
func TestPrivilegedDel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		prep func(e *env)
		del  func(e *env) error
	}{
		{"never added", func(e *env) { e.netns = "" }, nil},
		{"CNI_NETNS empty", func(e *env) { e.mustAdd("a"); e.netns = "" }, nil},
		{"CNI_NETNS not there, the pod is", func(e *env) { e.mustAdd("a"); e.netns = "/run/netns/none" }, nil},
		{"CNI_NETNS a plain file", func(e *env) { e.mustAdd("a"); e.netns = "/proc/self/comm" }, nil},
		{"configuration empty but for the name", func(e *env) { e.mustAdd("a"); e.conf = `"x":1` }, nil},
		{"configuration wrong", func(e *env) { e.mustAdd("a"); e.conf = `"device":7,"ipam":{"type":"fake"}` }, nil},
		{"record lost", func(e *env) { e.mustAdd("a"); e.loseRecord("a") }, nil},
		{"renamed in the pod", func(e *env) {
			e.mustAdd("a")
			e.ip(e.pod.NS, "link set eth0 down")
			e.ip(e.pod.NS, "link set eth0 name other")
		}, nil},
		{"alias gone, MTU and address changed in the pod", func(e *env) {
			e.mustAdd("a")
			e.ip(e.pod.NS, "link set eth0 mtu 1300")
			e.ip(e.pod.NS, "link set eth0 address 02:00:00:00:00:99")
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, withIPAM)
			tt.prep(e)
			e.mustDel("a")
			e.home()
			e.mustDel("a")
			e.home()
		})
	}
}

func (e *env) loseRecord(id string) {
	e.t.Helper()
	if err := e.runs.Remove(e.args(id, "").Ref("net"), Name); err != nil {
		e.t.Fatal(err)
	}
}

// A device comes back even if another one has its name now.
func TestPrivilegedNameTakenOnReturn(t *testing.T) {
	t.Parallel()
	for _, podName := range []string{"free on the host", "taken on the host"} {
		t.Run(podName, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, withIPAM)
			e.mustAdd("a")
			e.ip(e.node.NS, "link add nic0 type veth peer name thief0")
			if podName == "free on the host" {
				e.ip(e.node.NS, "link set eth0 down") // before 6.2 a device that is up keeps its name
				e.ip(e.node.NS, "link set eth0 name uplink0")
			}
			e.mustDel("a")
			var back string
			for name, alias := range e.links(e.node.NS) {
				if alias == "nic0" {
					back = name
				}
			}
			if back == "" || back == "nic0" {
				t.Fatalf("devices of the host: %v", e.links(e.node.NS))
			}
			if got := e.ip(e.node.NS, "link show "+back); !strings.Contains(got, "02:00:00:00:00:07") || !strings.Contains(got, "state DOWN") {
				t.Errorf("came back as %s", got)
			}
			if e.warned.Len() == 0 || e.records() != 0 || len(e.links(e.pod.NS)) != 1 {
				t.Errorf("%d warnings, %d records, pod has %v", e.warned.Len(), e.records(), e.links(e.pod.NS))
			}
		})
	}
}

// Another interface of the pod that bears the device's own name is not touched.
func TestPrivilegedNamesakeInPod(t *testing.T) {
	t.Parallel()
	e := newEnv(t, byName)
	e.ip(e.pod.NS, "link add nic0 type veth peer name nic0peer")
	before := e.ip(e.pod.NS, "-br link show nic0")
	res := e.mustAdd("a")
	if err := e.check("a", res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	e.mustDel("a")
	e.home()
	if after := e.ip(e.pod.NS, "-br link show nic0"); after != before {
		t.Errorf("the pod's own nic0 was %s and is %s", before, after)
	}
}

// A failed ADD puts back everything, also what the move itself takes away.
func TestPrivilegedAddFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		conf string
		prep func(e *env)
		code uint
		word string
	}{
		{"IPAM", withIPAM, func(e *env) { e.ipam.err = errors.New("pool is empty") }, 0, "pool is empty"},
		{"CNI_IFNAME taken", withIPAM, func(e *env) { e.ip(e.pod.NS, "link add eth0 type veth peer name x0") }, 103, "CNI_IFNAME"},
		{"netns missing", withIPAM, func(e *env) { e.netns = "/run/netns/none" }, 8, "/run/netns/none"},
		{"loopback", `"device":"lo"`, func(*env) {}, 7, "loopback"},
		{"no such device", `"device":"nic9"`, func(*env) {}, 7, `device "nic9"`},
		{"no such address", `"hwaddr":"02:00:00:00:00:08"`, func(*env) {}, 7, `hwaddr "02:00:00:00:00:08"`},
		{"no such path", `"kernelpath":"/sys/devices/none"`, func(*env) {}, 7, "kernelpath"},
		{"no such PCI device", `"pciBusID":"0000:00:11.0"`, func(*env) {}, 7, "0000:00:11.0"},
		{"PCI device without a network device", `"pciBusID":"0000:00:09.0"`, func(*env) {}, 7, "0000:00:09.0"},
		{"no result in this version", byName, func(e *env) { e.version = "0.2.0" }, 2, "0.2.0"},
		{"route that the kernel refuses", withIPAM, func(e *env) {
			e.ipam.err = nil
			e.plugin = New(Deps{IPAM: badRoute{e.ipam}, Records: e.runs, Root: e.root})
		}, 100, "route"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, tt.conf)
			fakeSysfs(t, e.root)
			e.ip(e.node.NS, "link set nic0 up alias uplink-of-rack-7")
			e.ip(e.node.NS, "addr add 192.0.2.77/25 dev nic0")
			e.ip(e.node.NS, "-6 addr add 2001:db8:77::7/64 dev nic0 nodad")
			e.ip(e.node.NS, "route add 198.51.100.0/24 via 192.0.2.78 dev nic0 metric 9")
			tt.prep(e)
			before := e.facts(nil)
			_, err := e.add("a")
			if err == nil || !strings.Contains(err.Error(), tt.word) {
				t.Fatalf("error %v does not say %q", err, tt.word)
			}
			if tt.code != 0 {
				plugintest.WantCode(t, err, tt.code)
			}
			if d := cmp.Diff(before, e.facts(before)); d != "" {
				t.Errorf("the node has changed (- before, + after):\n%s", d)
			}
			if e.records() != 0 || len(e.ipam.held) != 0 {
				t.Errorf("%d records, addresses %v are left", e.records(), e.ipam.held)
			}
		})
	}
}

// badRoute adds a route that cannot be made.
type badRoute struct{ *fakeIPAM }

func (b badRoute) Add(ctx context.Context, a *cniskel.Args, kind string) (*types100.Result, error) {
	res, err := b.fakeIPAM.Add(ctx, a, kind)
	if err == nil {
		res.Routes = append(res.Routes, route("10.9.0.0/16", "10.200.0.1"))
	}
	return res, err
}

// A second ADD of one attachment starts with giving back what the first took.
func TestPrivilegedAddTwice(t *testing.T) {
	t.Parallel()
	e := newEnv(t, byName)
	e.mustAdd("a")
	_, err := e.add("a")
	plugintest.WantCode(t, err, 103, "CNI_IFNAME")
	// The name is free again, but the record is not closed.
	e.ip(e.pod.NS, "link set eth0 down")
	e.ip(e.pod.NS, "link set eth0 name other")
	e.mustAdd("a")
	if got := e.links(e.pod.NS); got["eth0"] != "nic0" || len(got) != 2 {
		t.Errorf("devices of the pod: %v", got)
	}
	e.mustDel("a")
	e.home()
}

func TestPrivilegedCheck(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, change, word string }{
		{"address", "addr del 10.1.0.2/24 dev eth0", "10.1.0.2/24"},
		{"hardware address", "link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99"},
		{"MTU", "link set eth0 mtu 1300", "1300"},
		{"down", "link set eth0 down", "down"},
		{"alias", "link set eth0 alias none", "alias"},
		{"gone", "link del eth0", "does not exist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, withIPAM)
			res := e.mustAdd("a")
			e.ip(e.pod.NS, tt.change)
			err := e.check("a", res)
			plugintest.WantCode(t, err, 102)
			if !strings.Contains(err.Error(), tt.word) {
				t.Errorf("error %q does not name %s", err, tt.word)
			}
		})
	}
}

// GC gives back what no valid attachment has, and only that.
func TestPrivilegedGC(t *testing.T) {
	t.Parallel()
	e := newEnv(t, withIPAM)
	e.mustAdd("a")
	gc := func(list string) {
		t.Helper()
		if err := e.call(e.plugin.GC, "", `,"cni.dev/valid-attachments":[`+list+`]`); err != nil {
			t.Fatalf("GC: %v", err)
		}
	}
	gc(`{"containerID":"a","ifname":"eth0"}`)
	if got := e.links(e.pod.NS); got["eth0"] != "nic0" {
		t.Fatalf("GC took a valid attachment's device: %v", got)
	}
	gc(`{"containerID":"b","ifname":"eth0"}`)
	e.home()
	gc("")
	e.home()
}

func TestPrivilegedStatus(t *testing.T) {
	t.Parallel()
	e := newEnv(t, withIPAM)
	fakeSysfs(t, e.root)
	status := func(conf string) error { e.conf = conf; return e.call(e.plugin.Status, "", "") }
	if err := status(withIPAM); err != nil {
		t.Errorf("device on the host: %v", err)
	}
	e.mustAdd("a")
	for _, conf := range []string{byName, `"hwaddr":"02:00:00:00:00:07"`, `"capabilities":{"deviceID":true}`} {
		if err := status(conf); err != nil {
			t.Errorf("%s, lent: %v", conf, err)
		}
	}
	plugintest.WantCode(t, status(`"device":"nic9"`), 50, "nic9")
	plugintest.WantCode(t, status(`"x":1`), 50, "device, hwaddr")
	plugintest.WantCode(t, status(`"pciBusID":"0000:00:09.0"`), 50, "0000:00:09.0")
	e.ipam.err = errors.New("daemon is down")
	if err := status(withIPAM); err == nil || !strings.Contains(err.Error(), "daemon is down") {
		t.Errorf("IPAM's trouble is not passed on: %v", err)
	}
}
