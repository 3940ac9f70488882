// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// fakeSysfs makes a machine's sysfs below root:
//
//	0000:00:04.0  Ethernet, nic0
//	0000:00:05.0  virtio, virtio3 with nic0 too
//	0000:00:09.0  Ethernet without a driver
//	0000:00:0a.0  given to a process by vfio-pci
//	mlx5_core.sf.2 on the auxiliary bus, nic0 again
func fakeSysfs(t *testing.T, root string) {
	t.Helper()
	const bus = "sys/devices/pci0000:00/"
	at := func(p string) string { return filepath.Join(root, p) }
	for _, id := range []string{"0000:00:04.0", "0000:00:05.0", "0000:00:09.0", "0000:00:0a.0"} {
		mustWrite(t, at(bus+id+"/uevent"))
		mustLink(t, at("sys/bus/pci"), at(bus+id+"/subsystem"))
		mustLink(t, at(bus+id), at("sys/bus/pci/devices/"+id))
	}
	for id, driver := range map[string]string{"0000:00:04.0": "e1000", "0000:00:05.0": "virtio-pci", "0000:00:0a.0": "vfio-pci"} {
		mustWrite(t, at("sys/bus/pci/drivers/"+driver+"/bind"))
		mustLink(t, at("sys/bus/pci/drivers/"+driver), at(bus+id+"/driver"))
	}
	mustWrite(t, at(bus+"0000:00:04.0/net/nic0/mtu"))
	mustWrite(t, at(bus+"0000:00:05.0/virtio3/net/nic0/mtu"))
	mustLink(t, at("sys/bus/virtio"), at(bus+"0000:00:05.0/virtio3/subsystem"))
	const sf = bus + "0000:00:04.0/mlx5_core.sf.2"
	mustWrite(t, at(sf+"/net/nic0/mtu"))
	mustLink(t, at("sys/bus/auxiliary"), at(sf+"/subsystem"))
	mustLink(t, at(sf), at("sys/bus/auxiliary/devices/mlx5_core.sf.2"))
}

func TestSysfs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fakeSysfs(t, root)
	s := sysfs{root}
	name := func(want string) func(string, error) {
		return func(got string, err error) {
			t.Helper()
			if err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
	}
	name("nic0")(s.pciNet("0000:00:04.0"))
	name("nic0")(s.pciNet("0000:00:05.0"))
	name("nic0")(s.auxNet("mlx5_core.sf.2"))
	name("nic0")(s.pathNet("/sys/devices/pci0000:00/0000:00:04.0"))
	for _, id := range []string{"0000:00:09.0", "0000:00:0a.0", "none"} {
		if got, err := s.pciNet(id); err == nil {
			t.Errorf("%s has the network device %q", id, got)
		}
	}
	for id, want := range map[string]bool{"0000:00:04.0": false, "0000:00:09.0": false, "0000:00:0a.0": true} {
		if got, err := s.inUserspace(id); err != nil || got != want {
			t.Errorf("%s in user space: %v, %v", id, got, err)
		}
	}
	for ifname, device := range map[string]string{"pci0": "0000:00:04.0", "virtio0": "0000:00:05.0/virtio3", "sf0": "0000:00:04.0/mlx5_core.sf.2", "gone0": "x"} {
		mustLink(t, filepath.Join(root, "sys/devices/pci0000:00", device), filepath.Join(root, classNet, ifname, "device"))
	}
	for ifname, want := range map[string]string{"pci0": "0000:00:04.0", "virtio0": "0000:00:05.0", "sf0": "", "gone0": "", "none": ""} {
		if got := s.pciOf(ifname); got != want {
			t.Errorf("PCI address of %s is %q, want %q", ifname, got, want)
		}
	}
	// The directory is there and empty while a pod has the device.
	if err := os.RemoveAll(filepath.Join(root, "sys/devices/pci0000:00/0000:00:04.0/net/nic0")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.pciNet("0000:00:04.0"); err == nil {
		t.Errorf("an empty directory names %q", got)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fakeSysfs(t, root)
	tests := []struct {
		name, conf string
		code       uint
		words      []string
	}{
		{"nothing", `"x":1`, 7, []string{"device", "hwaddr", "kernelpath", "pciBusID", "deviceID"}},
		{"device", `"device":"a/b"`, 7, []string{"device", `"a/b"`}},
		{"device too long", `"device":"` + strings.Repeat("a", 128) + `"`, 7, []string{"device"}},
		{"device of another type", `"device":7`, 6, []string{"device"}},
		{"hwaddr", `"hwaddr":"02:00"`, 7, []string{"hwaddr", "02:00"}},
		{"kernelpath elsewhere", `"kernelpath":"/etc/passwd"`, 7, []string{"kernelpath", "/etc/passwd"}},
		{"kernelpath leading out", `"kernelpath":"/sys/devices/../../etc"`, 7, []string{"kernelpath"}},
		{"kernelpath with a line break", `"kernelpath":"/sys/devices/a\nb"`, 7, []string{"kernelpath", "control"}},
		{"kernelpath relative", `"kernelpath":"sys/devices/x"`, 7, []string{"kernelpath"}},
		{"pciBusID leading out", `"pciBusID":"../../../devices"`, 7, []string{"pciBusID"}},
		{"pciBusID unknown", `"pciBusID":"0000:00:11.0"`, 7, []string{"pciBusID", "0000:00:11.0"}},
		{"deviceID unknown", `"runtimeConfig":{"deviceID":"x"}`, 7, []string{"runtimeConfig.deviceID", `"x"`}},
		{"deviceID leading out", `"runtimeConfig":{"deviceID":".."}`, 7, []string{"runtimeConfig.deviceID"}},
		{"deviceID of another type", `"runtimeConfig":{"deviceID":[]}`, 6, []string{"deviceID"}},
		{"what the device replaces", `"device":"nic0","hwaddr":"x","kernelpath":"y","ipam":7`, 6, []string{"ipam"}},
		{"what the deviceID replaces", `"pciBusID":"..","runtimeConfig":{"deviceID":"x"}`, 7, []string{"runtimeConfig.deviceID", `"x"`}},
		{"ipam of another type", `"device":"nic0","ipam":7`, 6, []string{"ipam"}},
	}
	p := New(Deps{Root: root})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", StdinData: []byte(`{"cniVersion":"1.1.0","name":"net",` + tt.conf + `}`)}}
			_, err := p.Add(context.Background(), a)
			plugintest.WantCode(t, err, tt.code, tt.words...)
		})
	}
}

// STATUS has no runtimeConfig: a pciBusID that deviceID will replace may be a placeholder.
func TestStatusWithPlaceholder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fakeSysfs(t, root)
	p := New(Deps{Root: root})
	for _, id := range []string{"placeholder", ".."} {
		conf := `{"cniVersion":"1.1.0","name":"net","pciBusID":"` + id + `","capabilities":{"deviceID":true}}`
		if err := p.Status(t.Context(), &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{StdinData: []byte(conf)}}); err != nil {
			t.Errorf("pciBusID %q: %v", id, err)
		}
	}
}

// What a device is recognised by, in the pod and back on the host.
func TestSame(t *testing.T) {
	t.Parallel()
	mac := func(s string) net.HardwareAddr { m, _ := net.ParseMAC(s); return m }
	const own, other = "02:00:00:00:00:01", "02:00:00:00:00:02"
	hardware := section{Device: "nic0", MAC: own, PermMAC: own}
	virtual := section{Device: "nic0", MAC: own, Kind: "veth"}
	tests := []struct {
		name string
		s    section
		l    rtnl.Link
		want bool
	}{
		{"hardware", hardware, rtnl.Link{Name: "x", MAC: mac(other), PermMAC: mac(own)}, true},
		{"other hardware with the alias", hardware, rtnl.Link{Name: "eth0", Alias: "nic0", MAC: mac(own), PermMAC: mac(other)}, false},
		{"virtual device with hardware's alias", hardware, rtnl.Link{Name: "eth0", Alias: "nic0", Kind: "veth", MAC: mac(own)}, false},
		{"virtual, by alias", virtual, rtnl.Link{Name: "x", Alias: "nic0", Kind: "veth", MAC: mac(other)}, true},
		{"virtual, by address and name", virtual, rtnl.Link{Name: "eth0", Kind: "veth", MAC: mac(own)}, true},
		{"virtual, by address and own name", virtual, rtnl.Link{Name: "nic0", Kind: "veth", MAC: mac(own)}, true},
		{"virtual, by address alone", virtual, rtnl.Link{Name: "x", Kind: "veth", MAC: mac(own)}, false},
		{"virtual of another kind", virtual, rtnl.Link{Name: "eth0", Alias: "nic0", Kind: "dummy", MAC: mac(own)}, false},
		{"no address, by name alone", section{Device: "nic0", Kind: "tun"}, rtnl.Link{Name: "nic0", Kind: "tun"}, false},
		{"hardware without an address", section{Device: "can0"}, rtnl.Link{Name: "eth0", Alias: "can0"}, true},
		{"loopback", section{Device: "lo"}, rtnl.Link{Name: "lo", Alias: "lo", Loopback: true}, false},
		{"nothing was moved", section{}, rtnl.Link{Name: "eth0"}, false},
	}
	for _, tt := range tests {
		if got := tt.s.same(tt.l, "eth0"); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func route(dst, gw string) *types.Route {
	_, n, _ := net.ParseCIDR(dst)
	return &types.Route{Dst: *n, GW: net.ParseIP(gw)}
}

// A device whose driver hands it to a process is not moved; the pod gets its
// addresses by name.
func TestPrivilegedDPDK(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{
		`"pciBusID":"0000:00:0a.0"`,
		`"runtimeConfig":{"deviceID":"0000:00:0a.0"},"ipam":{"type":"fake"}`,
		`"device":"nic0","DPDKMode":true`,
	} {
		t.Run(conf, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, conf)
			fakeSysfs(t, e.root)
			res := e.mustAdd("a")
			i := res.Interfaces[0]
			if i.Name != "eth0" || i.Mac != "" || i.Sandbox != e.pod.Path || (i.PciID == "0000:00:0a.0") != strings.Contains(conf, "0a.0") {
				t.Errorf("interface %+v", i)
			}
			if got := e.links(e.pod.NS); len(got) != 1 {
				t.Errorf("devices of the pod: %v", got)
			}
			if strings.Contains(conf, "ipam") != (len(res.IPs) == 2) {
				t.Errorf("addresses: %v", res.IPs)
			}
			if err := e.check("a", res); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			if strings.Contains(conf, "0a.0") {
				driver := filepath.Join(e.root, "sys/devices/pci0000:00/0000:00:0a.0/driver")
				if err := os.Remove(driver); err != nil {
					t.Fatal(err)
				}
				plugintest.WantCode(t, e.check("a", res), 102, "driver")
			}
			e.mustDel("a")
			e.mustDel("a")
			e.home()
		})
	}
}
