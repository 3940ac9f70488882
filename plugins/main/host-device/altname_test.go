// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"bytes"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// Upstream finds a device by an alternative name too (netlink.LinkByName)
// and gives it back under the name it had.
func TestPrivilegedAltName(t *testing.T) {
	for _, alt := range []string{"alt0", "averyveryverylongname"} {
		t.Run(alt, func(t *testing.T) {
			e := newEnv(t, `"device":"`+alt+`"`)
			e.ip(e.node.NS, "link property add dev nic0 altname "+alt)
			e.mustAdd("a")
			e.mustDel("a")
			e.home()
		})
	}
}

// A DEL of an attachment that was never made must not take another one's device.
func TestPrivilegedDelOfFailedAdd(t *testing.T) {
	e := newEnv(t, withIPAM)
	e.ip(e.node.NS, "link add nic1 type veth peer name wire1")
	e.mustAdd("a")
	other := func() *cniskel.Args {
		a := e.args("a", "")
		a.StdinData = []byte(`{"cniVersion":"1.1.0","name":"othernet","type":"host-device","device":"nic1"}`)
		return a
	}
	if err := e.node.Do(func() error { _, err := e.plugin.Add(t.Context(), other()); return err }); err == nil {
		t.Fatal("ADD should fail")
	}
	if err := e.node.Do(func() error { return e.plugin.Del(t.Context(), other()) }); err != nil {
		t.Fatal(err)
	}
	if got := e.links(e.pod.NS); got["eth0"] != "nic0" {
		t.Errorf("the first network's device has left the pod: %v; node: %v", got, e.links(e.node.NS))
	}
}

// An operator may give the network another name while pods have its devices: they come home as with upstream, and their
// addresses are free again.
func TestPrivilegedDelUnderAnotherName(t *testing.T) {
	e := newEnv(t, withIPAM)
	e.mustAdd("a")
	a := e.args("a", "")
	a.StdinData = bytes.Replace(a.StdinData, []byte(`"name":"`), []byte(`"name":"new`), 1)
	if err := e.node.Do(func() error { return e.plugin.Del(t.Context(), a) }); err != nil {
		t.Fatal(err)
	}
	e.home()
}

// The pod gets a second address/vlan on it, a bridge member in the pod, XDP..: DEL brings it home.
func TestPrivilegedOddHome(t *testing.T) {
	for name, prep := range map[string]func(e *env){
		"port of a bridge in the pod": func(e *env) {
			e.ip(e.pod.NS, "link add brx type bridge")
			e.ip(e.pod.NS, "link set eth0 master brx")
		},
		"macvlan on it": func(e *env) {
			e.ip(e.pod.NS, "link add mv0 link eth0 type macvlan")
		},
		"other device named nic0 in the pod": func(e *env) {
			e.ip(e.pod.NS, "link add nic0 type veth peer name zz0")
		},
		"other device with alias in the pod": func(e *env) {
			e.ip(e.pod.NS, "link add aa0 type veth peer name zz0")
			e.ip(e.pod.NS, "link set aa0 alias nic0")
		},
		"promisc, arp off, txqueuelen": func(e *env) {
			e.ip(e.pod.NS, "link set eth0 promisc on arp off txqueuelen 7")
		},
		"altname in pod": func(e *env) {
			e.ip(e.pod.NS, "link property add dev eth0 altname nic0")
		},
		"altname taken on host": func(e *env) {
			e.ip(e.node.NS, "link property add dev wire0 altname nic0x")
			e.ip(e.pod.NS, "link property add dev eth0 altname nic0x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, withIPAM)
			e.mustAdd("a")
			prep(e)
			if err := e.call(e.plugin.Del, "a", ""); err != nil {
				t.Error("DEL", err)
			}
			e.home()
		})
	}
}
