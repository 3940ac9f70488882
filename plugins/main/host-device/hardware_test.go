// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// card is a real network card in the machine's first network namespace, where
// the kernel brings it home to. Only a machine made for tests has one to spare.
type card struct {
	*env
	name string
}

func newCard(t *testing.T) *card {
	t.Helper()
	mac := os.Getenv(netlab.EnvNIC)
	if mac == "" {
		require.Feature(t, "spare network card", func() error { return require.ErrMissing })
	}
	for _, module := range []string{"virtio_pci", "virtio_net"} {
		_ = exec.Command("modprobe", module).Run() // built in, or there already
	}
	l := netlab.NewT(t)
	e := &env{
		t: t, node: l.Node, pod: l.Node.PodT(t, "pod"), ipam: &fakeIPAM{held: map[string]bool{}},
		runs: attachments.Open(filepath.Join(t.TempDir(), "attachments")), log: log.NewNop(), version: "1.1.0",
	}
	e.netns = e.pod.ProcPath()
	e.plugin = New(Deps{IPAM: e.ipam, Records: e.runs})
	c := &card{env: e}
	if c.name = c.find(mac); c.name == "" {
		t.Fatalf("there is no card with the address %s", mac)
	}
	c.conf = `"device":"` + c.name + `","ipam":{"type":"fake"}`
	return c
}

// find waits for the card: its driver may just have been loaded, or a pod gone.
func (c *card) find(mac string) string {
	for end := time.Now().Add(netlab.Patient(5 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		list, err := net.Interfaces()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, i := range list {
			if i.HardwareAddr.String() == mac {
				return i.Name
			}
		}
		if time.Now().After(end) {
			return ""
		}
	}
}

// add and del run here, outside of the lab's node.
func (c *card) add() *types100.Result {
	c.t.Helper()
	r, err := c.plugin.Add(context.Background(), c.args("a", ""))
	if err != nil {
		c.t.Fatalf("ADD: %v", err)
	}
	res, err := types100.NewResultFromResult(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

func (c *card) del() {
	c.t.Helper()
	if err := c.plugin.Del(context.Background(), c.args("a", "")); err != nil {
		c.t.Fatalf("DEL: %v", err)
	}
}

// end lets the pod's namespace go.
func (c *card) end() {
	c.t.Helper()
	if err := c.pod.Delete(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *card) mustBeHome() {
	c.t.Helper()
	out, err := exec.Command("ip", "-d", "link", "show", c.name).CombinedOutput()
	if err != nil || strings.Contains(string(out), "alias") || !strings.Contains(string(out), os.Getenv(netlab.EnvNIC)) {
		c.t.Errorf("the card is not as it was: %v: %s", err, out)
	}
	if c.records() != 0 || len(c.ipam.held) != 0 {
		c.t.Errorf("%d records, addresses %v are left", c.records(), c.ipam.held)
	}
}

// What the kernel does with real hardware, and what is made of it.
func TestPrivilegedHardware(t *testing.T) {
	tests := []struct {
		name string
		run  func(c *card)
	}{
		{"by PCI address", func(c *card) {
			id := c.pciID()
			c.conf = `"pciBusID":"` + id + `"`
			if res := c.add(); res.Interfaces[0].PciID != id || res.Interfaces[0].Mtu != 1500 {
				t.Errorf("lent %+v", res.Interfaces[0])
			}
			c.del()
		}},
		{"namespace gone", func(c *card) { c.add(); c.end(); c.del() }},
		{"namespace gone, CNI_NETNS empty", func(c *card) { c.add(); c.end(); c.netns = ""; c.del() }},
		{"namespace and record gone", func(c *card) {
			c.add()
			c.end()
			c.find(os.Getenv(netlab.EnvNIC)) // without a record DEL does not know what to wait for
			if err := c.runs.Remove(attachments.ID{Network: "net", ContainerID: "a", IfName: "eth0"}, Name); err != nil {
				c.t.Fatal(err)
			}
			c.del()
		}},
		{"lent again without DEL", func(c *card) {
			c.add()
			c.end()
			c.find(os.Getenv(netlab.EnvNIC))
			c.pod = c.node.PodT(c.t, "pod2")
			c.netns = c.pod.ProcPath()
			c.add()
			c.del()
		}},
		{"disguised by the pod", func(c *card) {
			c.add()
			for _, args := range []string{"link set eth0 down", "link set eth0 name x address 02:00:00:00:00:99 alias nobody"} {
				c.ip(c.pod.NS, args)
			}
			c.del()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCard(t)
			tt.run(c)
			c.mustBeHome()
			c.netns = ""
			c.del()
			c.mustBeHome()
		})
	}
}

// pciID returns the card's PCI address as sysfs has it.
func (c *card) pciID() string {
	c.t.Helper()
	id := sysfs{"/"}.pciOf(c.name)
	if id == "" {
		c.t.Fatal("sysfs does not say on which bus the card is")
	}
	return id
}
