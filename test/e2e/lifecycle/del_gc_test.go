// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// fullChain has every plugin of the suite in it.
func fullChain() e2etest.Network {
	return e2etest.Network{Plugins: []string{"tuning", "portmap", "firewall"}}
}

func somePorts() []e2etest.PortMapping {
	return []e2etest.PortMapping{e2etest.TCP(8080, 80), e2etest.UDP(8080, 80), e2etest.TCP(8443, 443)}
}

// DEL leaves nothing, whatever the runtime still knows and whatever is gone
// already.
func TestPrivilegedDel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		// spoil takes something away between ADD and DEL.
		spoil func(t *testing.T, w *e2etest.World, p *e2etest.Pod)
		times int
		// withoutBridge: what stays by design has gone with cni0.
		withoutBridge bool
	}{
		{name: "plain", times: 1},
		{name: "twice", times: 2},
		{name: "without runtimeConfig", times: 1, spoil: func(_ *testing.T, _ *e2etest.World, p *e2etest.Pod) {
			p.Attachment.Capabilities = nil
		}},
		{name: "without prevResult", times: 1, spoil: func(t *testing.T, _ *e2etest.World, p *e2etest.Pod) {
			forget(t, p)
		}},
		{name: "with an empty netns", times: 1, spoil: func(_ *testing.T, _ *e2etest.World, p *e2etest.Pod) {
			p.Attachment.NetNS = ""
		}},
		{name: "with a netns that is gone", times: 1, spoil: func(t *testing.T, _ *e2etest.World, p *e2etest.Pod) {
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "with a device that is gone", times: 1, spoil: func(t *testing.T, _ *e2etest.World, p *e2etest.Pod) {
			e2etest.MustRun(t, p, "ip link del eth0")
		}},
		{name: "with a device that the node has deleted", times: 1, spoil: func(t *testing.T, w *e2etest.World, p *e2etest.Pod) {
			e2etest.MustRun(t, w.Node, "ip link del "+p.HostVeth())
		}},
		{name: "with a bridge that is gone", times: 1, withoutBridge: true, spoil: func(t *testing.T, w *e2etest.World, _ *e2etest.Pod) {
			e2etest.MustRun(t, w.Node, "ip link del cni0")
		}},
		{name: "with a damaged record", times: 1, spoil: func(t *testing.T, w *e2etest.World, _ *e2etest.Pod) {
			damageRecords(t, w)
		}},
		{name: "with nothing but the container ID, twice", times: 2, spoil: func(t *testing.T, _ *e2etest.World, p *e2etest.Pod) {
			forget(t, p)
			p.Attachment.Capabilities, p.Attachment.NetNS = nil, ""
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			rt := w.Runtime(fullChain())
			before := w.Warmup(rt, somePorts()...)
			p := w.AddPod(rt, "web", somePorts()...)
			if tt.spoil != nil {
				tt.spoil(t, w, p)
			}
			for i := range tt.times {
				if err := p.TryDel(); err != nil {
					t.Errorf("DEL %d: %v", i+1, err)
				}
			}
			_ = p.ForgetAny()
			if !tt.withoutBridge {
				w.AssertNothingLeft(before)
			}
			assertNoAttachments(w)
		})
	}
}

// forget makes the runtime lose its cache of an attachment.
func forget(t testing.TB, p *e2etest.Pod) {
	t.Helper()
	if err := p.Runtime.ForgetCache(p.Attachment); err != nil {
		t.Fatal(err)
	}
}

const recordDir = "/run/sluice/attachments"

// damageRecords cuts every attachment record in half, as a full disk would.
func damageRecords(t testing.TB, w *e2etest.World) {
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
		spoil func(t *testing.T, p *e2etest.Pod)
	}{
		{"known to the runtime", func(*testing.T, *e2etest.Pod) {}},
		{"forgotten by the runtime", func(t *testing.T, p *e2etest.Pod) { forget(t, p) }},
		{"forgotten, and the netns gone", func(t *testing.T, p *e2etest.Pod) {
			forget(t, p)
			if err := p.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			rt, other := w.Runtime(fullChain()), w.Runtime(e2etest.Net1())
			w.Warmup(rt, somePorts()...)
			kept := w.AddPod(rt, "kept", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			e2etest.Serve(t, kept, "kept", ":80")
			stranger := w.AddPod(other, "other", e2etest.TCP(9090, 80))
			e2etest.Serve(t, stranger, "other", ":80")
			before := w.SyncedSnapshot()
			lost := w.AddPod(rt, "lost", e2etest.TCP(8081, 80))
			tt.spoil(t, lost)
			valid := []types.GCAttachment{{ContainerID: "kept", IfName: "eth0"}}
			if err := rt.GC(t.Context(), valid); err != nil {
				t.Errorf("GC: %v", err)
			}
			w.AssertNothingLeft(before)
			e2etest.AssertHostPort(t, w, "kept")
			e2etest.Ask(t, w.Client(), "tcp", e2etest.At(e2etest.Families()[0].Node(w.Client()), 9090))
			for _, p := range []*e2etest.Pod{kept, stranger} {
				if err := p.Check(); err != nil {
					t.Errorf("CHECK of %s: %v", p.Name, err)
				}
			}
			if err := rt.GC(t.Context(), nil); err != nil {
				t.Errorf("GC of all: %v", err)
			}
			e2etest.AssertNoAnswer(t, w.Client(), "tcp", e2etest.At(e2etest.Families()[0].Node(w.Client()), 8080))
			e2etest.Ask(t, w.Client(), "tcp", e2etest.At(e2etest.Families()[0].Node(w.Client()), 9090))
			stranger.MustDel()
			assertNoAttachments(w)
		})
	}
}

// A failed ADD leaves nothing, at whichever plugin of the chain it fails.
func TestPrivilegedFailedAdd(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		ports []e2etest.PortMapping
		net   func(e2etest.Network) e2etest.Network
	}{
		{"in the bridge plugin: a bridge that is none", nil, func(n e2etest.Network) e2etest.Network {
			n.Bridge = "eth0"
			return n
		}},
		{"in the IPAM plugin: an address outside of the pool", nil, func(n e2etest.Network) e2etest.Network {
			n.IPAM = e2etest.Attributes{"ranges": [][]e2etest.Attributes{{{"subnet": "10.1.0.0/16", "rangeStart": "10.9.0.1"}}}}
			return n
		}},
		{"in portmap", []e2etest.PortMapping{{HostPort: 0, ContainerPort: 80, Protocol: "tcp"}}, nil},
		{"in tuning", nil, func(n e2etest.Network) e2etest.Network {
			n.Plugins = []string{"tuning-bad"}
			return n
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			before := w.Warmup(w.Runtime(fullChain()), somePorts()...)
			n := fullChain()
			if tt.net != nil {
				n = tt.net(n)
			}
			p := w.NewPod(w.Runtime(n), "web", tt.ports...)
			err := p.TryAdd()
			if err == nil {
				t.Fatal("ADD succeeded")
			}
			// The runtime answers a failed ADD with DEL.
			if err := p.TryDel(); err != nil {
				t.Logf("DEL after the failed ADD (%v): %v", err, err)
			}
			w.AssertNothingLeft(before)
		})
	}
}

// A recorded attachment must be readable by people and other programs.
func TestPrivilegedRecord(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(fullChain()), "web", somePorts()...)
	out := e2etest.MustRun(t, w.Node, "find "+recordDir+" -type f -name *web* -print -exec cat {} ;")
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
