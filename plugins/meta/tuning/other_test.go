// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

func TestPrivilegedDelOfOther(t *testing.T) {
	d := newPod(t)
	d.add(`,"mtu":1400`)
	a := d.args("")
	a.StdinData = []byte(`{"cniVersion":"1.1.0","name":"othernet","type":"tuning","dataDir":"` + d.data + `"}`)
	if err := d.p.del(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if got := d.state()["mtu"]; got != "1400" {
		t.Errorf("the first network's mtu is %s", got)
	}
}

// The network has another name by now: the runtime that made the attachment says so by its result, and the interface, which may be a
// device of the node's that goes back, gets what it had.
func TestPrivilegedDelOfRenamedNetwork(t *testing.T) {
	d := newPod(t)
	before := d.state()
	d.add(`,"mtu":1400,"promisc":true`)
	a := d.args("")
	a.StdinData = []byte(strings.Replace(string(a.StdinData), `"name":"n"`, `"name":"renamed"`, 1))
	if err := d.p.del(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for k, v := range d.state() {
		if before[k] != v {
			t.Errorf("%s is %s, was %s", k, v, before[k])
		}
	}
}

func TestPrivilegedTwoInChain(t *testing.T) {
	d := newPod(t)
	before := d.state()
	d.add(`,"mtu":1400,"sysctl":{"net.core.somaxconn":"500"}`)
	d.add(`,"txQLen":77,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`)
	for range 2 {
		if err := d.p.del(t.Context(), d.args("")); err != nil {
			t.Fatal(err)
		}
	}
	for k, v := range d.state() {
		if before[k] != v {
			t.Errorf("%s is %s, was %s", k, v, before[k])
		}
	}
}

// Parameters are the namespace's, whatever network sets them: the DEL of one attachment leaves another's value, and the last one
// restores what was there before all.
func TestPrivilegedTwoNetworksOneSysctl(t *testing.T) {
	const key = "net/core/somaxconn"
	for name, order := range map[string][]int{"first to last": {0, 1, 2}, "last to first": {2, 1, 0}, "middle first": {1, 0, 2}} {
		t.Run(name, func(t *testing.T) {
			d := newPod(t)
			value := func() (v string) {
				d.do(func() (err error) { v, err = sysctl.Get(key); return err })
				return v
			}
			of := func(i int, keys string) *cniskel.Args {
				a := d.args(keys)
				a.IfName = fmt.Sprintf("net%d", i)
				a.StdinData = []byte(strings.Replace(string(a.StdinData), `"name":"n"`, fmt.Sprintf(`"name":"net%d"`, i), 1))
				return a
			}
			before := value()
			wanted := []string{"500", "600", "700"}
			for i, v := range wanted {
				if _, err := d.p.add(t.Context(), of(i, `,"sysctl":{"net.core.somaxconn":"`+v+`"}`)); err != nil {
					t.Fatal(err)
				}
			}
			for n, i := range order {
				if err := d.p.del(t.Context(), of(i, "")); err != nil {
					t.Fatal(err)
				}
				wanted[i] = ""
				want := slices.Max(wanted) // of the last one that is there
				if n == len(order)-1 {
					want = before
				}
				if got := value(); got != want {
					t.Errorf("after the DEL of net%d it is %s, want %s", i, got, want)
				}
			}
			if left := d.leftovers(); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// A parameter of all devices takes its value to each of them with every write, which is what it is written for: that it has the
// value already says nothing about the devices.
func TestPrivilegedParameterOfAllDevices(t *testing.T) {
	d := newPod(t)
	const all, one = "net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/eth0/disable_ipv6"
	d.do(func() error { return sysctl.Set(one, "1") })
	d.add(`,"sysctl":{"net.ipv6.conf.all.disable_ipv6":"0"}`)
	d.do(func() error {
		for _, key := range []string{all, one} {
			if v, err := sysctl.Get(key); err != nil || v != "0" {
				t.Errorf("%s is %q, %v", key, v, err)
			}
		}
		return nil
	})
}
