// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// fullChain has every plugin of the suite in it.
func fullChain() network { return network{plugins: []string{"tuning", "portmap", "firewall"}} }

func somePorts() []mapping { return []mapping{tcp(8080, 80), udp(8080, 80), tcp(8443, 443)} }

// DEL leaves nothing, whatever the runtime still knows and whatever is gone
// already.
func TestPrivilegedDel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		// spoil takes something away between ADD and DEL.
		spoil func(t *testing.T, w *world, p *pod)
		times int
		// withoutBridge: what stays by design has gone with cni0.
		withoutBridge bool
	}{
		{name: "plain", times: 1},
		{name: "twice", times: 2},
		{name: "without runtimeConfig", times: 1, spoil: func(_ *testing.T, _ *world, p *pod) {
			p.att.Capabilities = nil
		}},
		{name: "without prevResult", times: 1, spoil: func(t *testing.T, _ *world, p *pod) {
			forget(t, p)
		}},
		{name: "with an empty netns", times: 1, spoil: func(_ *testing.T, _ *world, p *pod) {
			p.att.NetNS = ""
		}},
		{name: "with a netns that is gone", times: 1, spoil: func(t *testing.T, _ *world, p *pod) {
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "with a device that is gone", times: 1, spoil: func(t *testing.T, _ *world, p *pod) {
			sh(t, p, "ip link del eth0")
		}},
		{name: "with a device that the node has deleted", times: 1, spoil: func(t *testing.T, w *world, p *pod) {
			sh(t, w.Node, "ip link del "+p.hostEnd())
		}},
		{name: "with a bridge that is gone", times: 1, withoutBridge: true, spoil: func(t *testing.T, w *world, _ *pod) {
			sh(t, w.Node, "ip link del cni0")
		}},
		{name: "with a damaged record", times: 1, spoil: func(t *testing.T, w *world, _ *pod) {
			damageRecords(t, w)
		}},
		{name: "with nothing but the container ID, twice", times: 2, spoil: func(t *testing.T, _ *world, p *pod) {
			forget(t, p)
			p.att.Capabilities, p.att.NetNS = nil, ""
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rt := w.runtime(fullChain())
			before := w.settled(rt, somePorts()...)
			p := w.add(rt, "web", somePorts()...)
			if tt.spoil != nil {
				tt.spoil(t, w, p)
			}
			for i := range tt.times {
				if err := p.tryDel(); err != nil {
					t.Errorf("DEL %d: %v", i+1, err)
				}
			}
			_ = p.ForgetAny()
			if !tt.withoutBridge {
				w.assertNothingLeft(before)
			}
			w.assertNoAttachments()
		})
	}
}

// forget makes the runtime lose its cache of an attachment.
func forget(t testing.TB, p *pod) {
	t.Helper()
	if err := p.rt.ForgetCache(p.att); err != nil {
		t.Fatal(err)
	}
}

// ForgetAny drops what the runtime may still have cached.
func (p *pod) ForgetAny() error {
	err := p.rt.ForgetCache(p.att)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

const recordDir = "/run/sluice/attachments"

// damageRecords cuts every attachment record in half, as a full disk would.
func damageRecords(t testing.TB, w *world) {
	t.Helper()
	n := 0
	err := w.Node.Do(func() error {
		entries, err := os.ReadDir(recordDir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := recordDir + "/" + e.Name()
			st, err := os.Stat(path)
			if err != nil {
				return err
			}
			if st.Mode().IsRegular() && st.Size() > 0 {
				n++
				if err := os.Truncate(path, st.Size()/2); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Fatal("no record to damage")
	}
}

// GC removes what is not listed and nothing else, whether the runtime still
// remembers the attachment or not.
func TestPrivilegedGC(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, p *pod)
	}{
		{"known to the runtime", func(*testing.T, *pod) {}},
		{"forgotten by the runtime", func(t *testing.T, p *pod) { forget(t, p) }},
		{"forgotten, and the netns gone", func(t *testing.T, p *pod) {
			forget(t, p)
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rt, other := w.runtime(fullChain()), w.runtime(net1())
			w.settled(rt, somePorts()...)
			kept := w.add(rt, "kept", tcp(8080, 80), udp(8080, 80))
			serve(t, kept, "kept", ":80")
			stranger := w.add(other, "other", tcp(9090, 80))
			serve(t, stranger, "other", ":80")
			before := w.steady()
			lost := w.add(rt, "lost", tcp(8081, 80))
			tt.spoil(t, lost)
			valid := []types.GCAttachment{{ContainerID: "kept", IfName: "eth0"}}
			if err := rt.GC(t.Context(), valid); err != nil {
				t.Errorf("GC: %v", err)
			}
			w.assertNothingLeft(before)
			whoIs(t, w, "kept")
			ask(t, w.Client(), "tcp", at(families()[0].node(w.Client()), 9090))
			for _, p := range []*pod{kept, stranger} {
				if err := p.check(); err != nil {
					t.Errorf("CHECK of %s: %v", p.Name, err)
				}
			}
			if err := rt.GC(t.Context(), nil); err != nil {
				t.Errorf("GC of all: %v", err)
			}
			refused(t, w.Client(), "tcp", at(families()[0].node(w.Client()), 8080))
			ask(t, w.Client(), "tcp", at(families()[0].node(w.Client()), 9090))
			stranger.mustDel()
			w.assertNoAttachments()
		})
	}
}

// A failed ADD leaves nothing, at whichever plugin of the chain it fails.
func TestPrivilegedFailedAdd(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		ports []mapping
		net   func(network) network
	}{
		{"in the bridge plugin: a bridge that is none", nil, func(n network) network {
			n.bridge = "eth0"
			return n
		}},
		{"in the IPAM plugin: an address outside of the pool", nil, func(n network) network {
			n.ipam = attributes{"ranges": [][]attributes{{{"subnet": "10.1.0.0/16", "rangeStart": "10.9.0.1"}}}}
			return n
		}},
		{"in portmap", []mapping{{HostPort: 0, ContainerPort: 80, Protocol: "tcp"}}, nil},
		{"in tuning", nil, func(n network) network {
			n.plugins = []string{"tuning-bad"}
			return n
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before := w.settled(w.runtime(fullChain()), somePorts()...)
			n := fullChain()
			if tt.net != nil {
				n = tt.net(n)
			}
			p := w.newPod(w.runtime(n), "web", tt.ports...)
			err := p.tryAdd()
			if err == nil {
				t.Fatal("ADD succeeded")
			}
			// The runtime answers a failed ADD with DEL.
			if err := p.tryDel(); err != nil {
				t.Logf("DEL after the failed ADD (%v): %v", err, err)
			}
			w.assertNothingLeft(before)
		})
	}
}

// A recorded attachment must be readable by people and other programs.
func TestPrivilegedRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(fullChain()), "web", somePorts()...)
	out := sh(t, w.Node, "find "+recordDir+" -type f -name *web* -print -exec cat {} ;")
	start := 0
	for start < len(out) && out[start] != '{' {
		start++
	}
	var record struct {
		Version     int
		ContainerID string
		IfName      string
		NetNS       string
	}
	if err := json.Unmarshal([]byte(out[start:]), &record); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if record.Version == 0 || record.ContainerID != "web" || record.IfName != "eth0" || record.NetNS != p.Path {
		t.Errorf("the record says %+v", record)
	}
}
