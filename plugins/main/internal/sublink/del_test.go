// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// DEL finds what ADD made with whatever little it is told, and leaves nothing.
func TestPrivilegedDel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, s *stage, c *plugintest.Call)
	}{
		{"as ADD", func(*testing.T, *stage, *plugintest.Call) {}},
		{"without the namespace's path", func(_ *testing.T, _ *stage, c *plugintest.Call) { c.Netns = "" }},
		{"after the namespace", func(t *testing.T, s *stage, _ *plugintest.Call) {
			if err := s.pod.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
		{"with the name alone", func(_ *testing.T, _ *stage, c *plugintest.Call) { c.Conf = nil }},
		{"with keys that ADD refuses", func(_ *testing.T, _ *stage, c *plugintest.Call) {
			*c = c.With("mtu", "odd").With("mode", "none").With("vlanId", 9999).With("master", "a/b")
		}},
		{"with a prevResult of many", func(_ *testing.T, _ *stage, c *plugintest.Call) {
			*c = c.With("master", nil).With("prevResult", map[string]any{"cniVersion": "1.1.0", "interfaces": []any{map[string]any{"name": "a"}, map[string]any{"name": "b"}}})
		}},
		{"after the record", func(t *testing.T, s *stage, _ *plugintest.Call) {
			if err := os.RemoveAll(s.Dir.Path()); err != nil {
				t.Fatal(err)
			}
		}},
		{"after a rename", func(_ *testing.T, s *stage, _ *plugintest.Call) {
			s.Change(s.pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error {
				if err := h.SetDown(l.Index); err != nil {
					return err
				}
				return h.SetName(l.Index, "other")
			})
		}},
		{"after the master", func(_ *testing.T, s *stage, _ *plugintest.Call) {
			if s.master {
				s.IP(s.Client().NS, "link del eth0")
				s.IP(s.Node.NS, "link add eth0 type veth peer name tmp") // for MustBeClean
				s.IP(s.Node.NS, "link set tmp netns "+s.pod.Path)
				s.IP(s.pod.NS, "link set tmp down")
			}
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			eachKind(t, func(t *testing.T, s *stage) {
				s.MustAdd(s.call())
				call := s.call()
				tc.spoil(t, s, &call)
				for range 2 {
					if err := s.Del(call); err != nil {
						t.Fatalf("DEL: %v", err)
					}
				}
				if len(s.IPAM.Held) > 0 {
					t.Errorf("held: %v", s.IPAM.Held)
				}
				s.NoRecords()
				if tc.name != "after the namespace" {
					if got := s.Links(s.pod.NS); slices.Contains(got, "eth0") || slices.Contains(got, "other") {
						t.Errorf("the pod has %v", got)
					}
				}
			})
		})
	}
}

// DEL spares an interface of another kind, and one that another attachment has
// made, whatever it is called.
func TestPrivilegedDelSparesOthers(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.IP(s.pod.NS, "link add eth0 type veth peer name eth1")
		if err := s.Del(s.call()); err != nil {
			t.Error(err)
		}
		if got := s.Links(s.pod.NS); !slices.Contains(got, "eth0") {
			t.Errorf("the pod has %v: a veth was deleted", got)
		}
		s.IP(s.pod.NS, "link del eth0")
		s.MustAdd(s.call())
		elsewhere := s.call()
		elsewhere.Container = "c2"
		if err := s.Del(elsewhere); err != nil {
			t.Error(err)
		}
		if got := s.Links(s.pod.NS); !slices.Contains(got, "eth0") {
			t.Errorf("the pod has %v: another attachment's interface was deleted", got)
		}
	})
}

// A DEL without an ipam section releases by the recorded one.
func TestPrivilegedDelGivesIPAMItsSection(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.MustAdd(s.call())
		if err := s.Del(s.call().With("ipam", nil)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(s.IPAM.Stdin), `"ipam":{"type":"fake"}`) {
			t.Errorf("IPAM got %s", s.IPAM.Stdin)
		}
	})
}

// GC detaches what is not listed, spares what is, and does not touch a pod that
// has come to the same path.
func TestPrivilegedGC(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		keep := s.Pod("keep")
		kept := s.call().With("vlanId", 101)
		kept.Container, kept.Netns = "kept", keep.Path
		keptResult := s.MustAdd(kept)
		s.MustAdd(s.call())
		foreign := s.call().With("name", "net2").With("vlanId", 102)
		foreign.Container, foreign.IfName = "foreign", "eth9"
		s.MustAdd(foreign)

		gc := plugintest.Call{Conf: map[string]any{"ipam": map[string]any{"type": "fake"}, "cni.dev/valid-attachments": []map[string]any{{"containerID": "kept", "ifname": "eth0"}}}}
		for range 2 {
			if err := s.Verb(s.Plug.GC, gc); err != nil {
				t.Fatalf("GC: %v", err)
			}
			if got := s.Links(s.pod.NS); slices.Contains(got, "eth0") || !slices.Contains(got, "eth9") {
				t.Errorf("the pod has %v, want eth0 of net1 gone and eth9 of net2 there", got)
			}
			if err := s.Check(kept, keptResult); err != nil {
				t.Errorf("CHECK of the listed attachment: %v", err)
			}
		}
		if s.IPAM.Held["c1/eth0"] || !s.IPAM.Held["kept/eth0"] || !s.IPAM.Held["foreign/eth9"] {
			t.Errorf("held: %v", s.IPAM.Held)
		}
		if !slices.Contains(s.IPAM.Calls, "GC fake") {
			t.Error("the IPAM plugin was not asked to collect")
		}
	})
}

// killedBeforeComplete makes of a finished record what an ADD leaves that was killed before it wrote its last one.
func (s *stage) killedBeforeComplete(ref attachments.ID) {
	s.T.Helper()
	data, found, path := attachments.ReadSection[map[string]any](s.Dir, ref, s.name)
	if !found || data["ifIndex"] == nil {
		s.T.Fatalf("the record of %s has %v", ref, data)
	}
	delete(data, "ifIndex")
	if err := s.Dir.Begin(ref, path, s.name, data); err != nil {
		s.T.Fatal(err)
	}
}

// GC gives the address of a killed ADD back, so the interface that has it must go too; but not one that another attachment claims.
func TestPrivilegedGCAfterKilledAdd(t *testing.T) {
	t.Parallel()
	gc := plugintest.Call{Conf: map[string]any{"ipam": map[string]any{"type": "fake"}, "cni.dev/valid-attachments": []any{}}}
	eachKind(t, func(t *testing.T, s *stage) {
		s.MustAdd(s.call())
		s.killedBeforeComplete(attachments.ID{Network: "net1", ContainerID: "c1", IfName: "eth0"})
		if err := s.Verb(s.Plug.GC, gc); err != nil {
			t.Fatalf("GC: %v", err)
		}
		if got := s.Links(s.pod.NS); slices.Contains(got, "eth0") {
			t.Errorf("the pod has %v, and its address is free", got)
		}
		if len(s.IPAM.Held) > 0 {
			t.Errorf("held: %v", s.IPAM.Held)
		}
		s.NoRecords()

		s.MustAdd(s.call())
		s.killedBeforeComplete(attachments.ID{Network: "net1", ContainerID: "c1", IfName: "eth0"})
		if err := s.Dir.Begin(attachments.ID{Network: "net2", ContainerID: "c2", IfName: "eth0"}, s.pod.Path, s.name, map[string]any{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Verb(s.Plug.GC, gc); err != nil {
			t.Fatalf("GC: %v", err)
		}
		if got := s.Links(s.pod.NS); !slices.Contains(got, "eth0") {
			t.Errorf("the pod has %v: what another attachment claims has gone", got)
		}
	})
}

// A record of a pod that went without DEL, and another pod at its path now.
func TestPrivilegedGCSparesSuccessor(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.MustAdd(s.call())
		if err := s.pod.Delete(); err != nil {
			t.Fatal(err)
		}
		next := s.Pod("pod") // the same path
		call := s.call().With("name", "other").With("vlanId", 101)
		call.Container, call.Netns = "next", next.Path
		s.MustAdd(call)
		gc := plugintest.Call{Conf: map[string]any{"cni.dev/valid-attachments": []any{}}}
		if err := s.Verb(s.Plug.GC, gc); err != nil {
			t.Fatal(err)
		}
		if got := s.Links(next.NS); !slices.Contains(got, "eth0") {
			t.Errorf("the next pod has %v", got)
		}
		if s.IPAM.Held["c1/eth0"] {
			t.Error("the address is still held")
		}
	})
}

// STATUS says what would keep an ADD from working.
func TestPrivilegedStatus(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		call := s.call()
		if err := s.Verb(s.Plug.Status, call); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		if s.master {
			plugintest.WantCode(t, s.Verb(s.Plug.Status, call.With("master", "nowhere")), 50, "nowhere")
			if err := s.Verb(s.Plug.Status, call.With("master", "nowhere").With("linkInContainer", true)); err != nil {
				t.Errorf("STATUS with a master in the pod: %v", err)
			}
		}
		plugintest.WantCode(t, s.Verb(s.Plug.Status, call.With("mtu", -1)), 7, "mtu")
		s.IPAM.VerbErr = json.Unmarshal([]byte("{"), new(any))
		if err := s.Verb(s.Plug.Status, call); err == nil {
			t.Error("STATUS does not pass the IPAM plugin's error on")
		}
		s.MustBeClean(s.pod)
	})
}
