// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

const full = `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"ebpf","macspoofchk":true,"ipam":{"type":"fake","x":1}`

var ref1 = attachments.ID{Network: "net1", ContainerID: "c1", IfName: "eth0"}

// recordFile returns the path of the only record.
func (r *rig) recordFile() string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir.Path(), "*.json"))
	if err != nil || len(files) != 1 {
		r.t.Fatalf("records: %v, %v", files, err)
	}
	return files[0]
}

// TestPrivilegedDel runs DEL with ever less to go by.
func TestPrivilegedDel(t *testing.T) {
	tests := []struct {
		name  string
		netns func(p *netlab.Pod) string
		conf  string
		prep  func(r *rig)
	}{
		{"everything there", func(p *netlab.Pod) string { return p.Path }, full, nil},
		{"no namespace", func(*netlab.Pod) string { return "" }, full, nil},
		{"namespace gone", func(*netlab.Pod) string { return "/run/netns/gone" }, full, nil},
		{"path is a plain file", func(*netlab.Pod) string { return "/etc/hostname" }, full, nil},
		{"only the name", func(*netlab.Pod) string { return "" }, "", nil},
		{"configuration that ADD refuses", func(*netlab.Pod) string { return "" }, `"bridge":7,"vlan":"x","ipMasqBackend":"odd"`, nil},
		{"record corrupt, namespace there", func(p *netlab.Pod) string { return p.Path }, full, func(r *rig) {
			if err := os.WriteFile(r.recordFile(), []byte(`{"version":`), 0o600); err != nil {
				r.t.Fatal(err)
			}
		}},
		{"record corrupt, no namespace", func(*netlab.Pod) string { return "" }, full, func(r *rig) {
			if err := os.WriteFile(r.recordFile(), nil, 0o600); err != nil {
				r.t.Fatal(err)
			}
		}},
		{"record lost, no namespace", func(*netlab.Pod) string { return "" }, full, func(r *rig) {
			if err := os.Remove(r.recordFile()); err != nil {
				r.t.Fatal(err)
			}
		}},
		{"host end renamed", func(*netlab.Pod) string { return "" }, "", func(r *rig) { r.rename("odd0") }},
	}
	for i := range 2 * len(tests) {
		tt, on, by := tests[i/2], newRig, "eBPF"
		if i%2 == 1 {
			on, by = newNFTablesRig, "nftables"
		}
		t.Run(tt.name+", "+by, func(t *testing.T) {
			r := on(t)
			pod := r.node.PodT(t, "p1")
			r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, full))
			if tt.prep != nil {
				tt.prep(r)
			}
			a := call("1.1.0", "c1", "eth0", tt.netns(pod), tt.conf)
			for range 2 {
				if err := r.del(a); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			r.mustBeClean(pod)
		})
	}
}

// rename gives the first veth of the node another name.
func (r *rig) rename(to string) {
	r.t.Helper()
	for _, n := range r.links(r.node.NS) {
		if strings.HasPrefix(n, "veth") {
			r.host(func(h *rtnl.Handle) error {
				l, err := h.LinkByName(n)
				if err != nil {
					return err
				}
				if err := h.SetDown(l.Index); err != nil {
					return err
				}
				return h.SetName(l.Index, to)
			})
			return
		}
	}
	r.t.Fatal("no veth")
}

func TestPrivilegedDelGivesIPAMItsSection(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, full))
	if err := r.del(call("1.1.0", "c1", "eth0", "", "")); err != nil {
		t.Fatal(err)
	}
	if want := `"ipam":{"type":"fake","x":1}`; !strings.Contains(string(r.ipam.Stdin), want) {
		t.Errorf("the delegate got %s", r.ipam.Stdin)
	}
}

// TestPrivilegedDelGoesOn makes one part fail: the others are done, the record
// stays, and a repetition finishes.
func TestPrivilegedDelGoesOn(t *testing.T) {
	r := newNFTablesRig(t)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, full)
	r.mustAdd(a)
	r.ipam.DelErr = errors.New("boom")
	r.nft.fail = errors.New("bang")
	err := r.del(a)
	fake.WantCode(t, err, cnierr.CodeKernel, "boom", "bang")
	if got := r.links(pod.NS); len(got) != 1 || len(r.dp.Held) != 0 {
		t.Errorf("left: %v, %v", got, r.dp.Held)
	}
	if _, err := r.dir.Load(ref1); err != nil {
		t.Errorf("the record went with work left: %v", err)
	}
	r.ipam.DelErr, r.nft.fail = nil, nil
	if err := r.del(a); err != nil {
		t.Fatal(err)
	}
	r.mustBeClean(pod)
}

// TestPrivilegedDelSparesOthers calls DEL for attachments that were never made.
func TestPrivilegedDelSparesOthers(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, full)
	res := r.mustAdd(a)
	if err := pod.Do(func() error {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		return h.AddVeth(rtnl.VethSpec{HostName: "eth9", PeerName: "peer9"})
	}); err != nil {
		t.Fatal(err)
	}
	never := []string{
		`"bridge":"br0"`,                        // same bridge, same interface, another network
		`"bridge":"br1","ipam":{"type":"fake"}`, // another bridge
	}
	for _, conf := range never {
		b := call("1.1.0", "c1", "eth0", pod.Path, conf)
		b.StdinData = []byte(strings.Replace(string(b.StdinData), "net1", "net2", 1))
		if err := r.del(b); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	c := call("1.1.0", "c1", "eth9", pod.Path, `"bridge":"br0"`) // a veth whose other end is not on the node
	if err := r.del(c); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if got := r.links(pod.NS); !slices.Contains(got, "eth0") || !slices.Contains(got, "eth9") {
		t.Errorf("a DEL took another's interface: %v", got)
	}
	if err := r.check(a, res); err != nil && !strings.Contains(err.Error(), "address of") {
		t.Errorf("CHECK: %v", err)
	}
}

// TestPrivilegedDelOfUpstream removes what the upstream plugin made: no
// record, a name of its own choice.
func TestPrivilegedDelOfUpstream(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	r.host(func(h *rtnl.Handle) error {
		if err := h.AddBridge(rtnl.BridgeSpec{Name: "br0", Up: true}); err != nil {
			return err
		}
		br, err := h.LinkByName("br0")
		if err != nil {
			return err
		}
		fd, err := os.Open(pod.ProcPath())
		if err != nil {
			return err
		}
		defer fd.Close()
		return h.AddVeth(rtnl.VethSpec{HostName: "vethabcdef01", PeerName: "eth0", PeerNS: int(fd.Fd()), Master: br.Index})
	})
	if err := r.del(call("0.4.0", "c1", "eth0", pod.Path, `"bridge":"br0","ipam":{"type":"fake"}`)); err != nil {
		t.Fatal(err)
	}
	r.mustBeClean(pod)
}

// TestPrivilegedDelWithoutDatapath takes the datapath away under a pod.
func TestPrivilegedDelWithoutDatapath(t *testing.T) {
	for _, prep := range []func(*loadertest.Datapath){
		func(f *loadertest.Datapath) { f.Loaded = false },
		func(f *loadertest.Datapath) {
			f.Fail = map[string]error{"Disable": fmt.Errorf("no map: %w", loader.ErrNotLoaded)}
		},
		func(f *loadertest.Datapath) { f.OpenErr = fmt.Errorf("no bpffs: %w", loader.ErrUnavailable) },
	} {
		r := newRig(t)
		pod := r.node.PodT(t, "p1")
		a := call("1.1.0", "c1", "eth0", pod.Path, full)
		r.mustAdd(a)
		prep(r.dp)
		if err := r.del(a); err != nil {
			t.Errorf("DEL: %v", err)
		}
		r.dp.Held = nil
		r.mustBeClean(pod)
	}
}

// Without a feature the datapath is told of a new bridge, once. Nothing is loaded for it, and its error is none of the pod's.
func TestPrivilegedPlainBridgeServesClients(t *testing.T) {
	for _, fails := range []error{nil, loader.ErrUnavailable} {
		r := newRig(t)
		r.dp.Loaded, r.dp.OpenErr = true, fails
		for _, name := range []string{"c1", "c2"} {
			pod := r.node.PodT(t, name)
			a := call("1.1.0", name, "eth0", pod.Path, `"bridge":"br0","isGateway":true,"ipam":{"type":"fake"}`)
			res := r.mustAdd(a)
			if err := r.check(a, res); err != nil {
				t.Fatal(err)
			}
			if err := r.del(a); err != nil {
				t.Fatal(err)
			}
		}
		if r.dp.Opens != 1 || r.dp.Loads != 0 || fails == nil && !slices.Equal(r.dp.Served, []string{"br0"}) {
			t.Errorf("the datapath was opened %d times and loaded %d times, for %v", r.dp.Opens, r.dp.Loads, r.dp.Served)
		}
	}
}

// TestPrivilegedRepeatedADD covers a runtime that lost track: the same
// attachment again, in a new namespace, without a DEL between.
func TestPrivilegedRepeatedADD(t *testing.T) {
	r := newRig(t)
	old, fresh := r.node.PodT(t, "p1"), r.node.PodT(t, "p2")
	r.mustAdd(call("1.1.0", "c1", "eth0", old.Path, full))
	_, err := r.add(call("1.1.0", "c1", "eth0", old.Path, full))
	fake.WantCode(t, err, cnierr.CodeConflict, "eth0")
	if got := r.links(old.NS); !slices.Contains(got, "eth0") {
		t.Fatalf("a refused ADD took the interface: %v", got)
	}
	a := call("1.1.0", "c1", "eth0", fresh.Path, full)
	r.mustAdd(a)
	if got := r.links(old.NS); len(got) != 1 {
		t.Errorf("left of the first ADD: %v", got)
	}
	if err := r.del(a); err != nil {
		t.Fatal(err)
	}
	r.mustBeClean(old, fresh)
}

func TestPrivilegedNameCollision(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	r.host(func(h *rtnl.Handle) error {
		return h.AddVeth(rtnl.VethSpec{HostName: veth.HostName(ref1, 0), PeerName: "x"})
	})
	a := call("1.1.0", "c1", "eth0", pod.Path, full)
	res := r.mustAdd(a)
	if got := res.Interfaces[1].Name; got != veth.HostName(ref1, 1) {
		t.Errorf("host end %s", got)
	}
	if err := r.del(a); err != nil {
		t.Fatal(err)
	}
	if got := r.links(r.node.NS); !slices.Contains(got, veth.HostName(ref1, 0)) || slices.Contains(got, veth.HostName(ref1, 1)) {
		t.Errorf("links %v", got)
	}
}

func TestPrivilegedGC(t *testing.T) {
	r := newNFTablesRig(t)
	var pods []*netlab.Pod
	for i := range 4 {
		pods = append(pods, r.node.PodT(t, fmt.Sprintf("p%d", i)))
		a := call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pods[i].Path, full)
		if i == 3 { // another network on the same bridge
			a.StdinData = []byte(strings.Replace(string(a.StdinData), "net1", "net2", 1))
		}
		r.mustAdd(a)
	}
	broken := filepath.Join(r.dir.Path(), "net1=c2=eth0.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	gc := func(extra string) error {
		a := call("1.1.0", "", "", "", full+extra)
		return r.verb(r.plug.GC, a)
	}
	fake.WantCode(t, gc(""), cnierr.CodeConfig, "valid-attachments")
	if err := gc(`,"cni.dev/valid-attachments":[{"containerID":"c0","ifname":"eth0"}]`); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 1, 1, 2} {
		if got := r.links(pods[i].NS); len(got) != want {
			t.Errorf("pod %d has %v", i, got)
		}
	}
	if diff := cmp.Diff(map[string]bool{"c0/eth0": true, "c3/eth0": true}, r.ipam.Held); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if len(r.dp.Held) != 2 || len(r.nft.chains) != 5 {
		t.Errorf("endpoints %v, chains %v", r.dp.Held, r.nft.chains)
	}
	if last := r.ipam.Calls[len(r.ipam.Calls)-1]; last != "GC fake" {
		t.Errorf("last call of the delegate: %s", last)
	}
	if err := gc(`,"cni.dev/valid-attachments":[]`); err != nil {
		t.Fatal(err)
	}
	if got := r.links(pods[3].NS); len(got) != 2 {
		t.Errorf("GC of one network touched another's pod: %v", got)
	}
	if recs, err := r.dir.List("net1"); err != nil || len(recs) != 0 {
		t.Errorf("records left: %v, %v", recs, err)
	}
}

func TestPrivilegedStatus(t *testing.T) {
	status := func(conf string, prep func(*rig)) error {
		r := newRig(t)
		if prep != nil {
			prep(r)
		}
		return r.verb(r.plug.Status, call("1.1.0", "", "", "", conf))
	}
	for _, conf := range []string{full, `"bridge":"br0"`} {
		if err := status(conf, nil); err != nil {
			t.Errorf("%s: %v", conf, err)
		}
	}
	fake.WantCode(t, status(full, func(r *rig) { r.dp.OpenErr = fmt.Errorf("old: %w", loader.ErrUnavailable) }), cnierr.CodeUnavailable, "old")
	fake.WantCode(t, status(full, func(r *rig) { r.dp.OpenErr = cnierr.New(cnierr.CodeConfig, "invalid backend", "") }), cnierr.CodeConfig, "invalid backend")
	fake.WantCode(t, status(full, func(r *rig) {
		r.nft.missing, r.tables = true, true
		r.plug = New(r.deps())
	}), cnierr.CodeUnavailable, "nft")
	fake.WantCode(t, status(full, func(r *rig) { r.ipam.VerbErr = cnierr.New(cnierr.CodeUnavailable, "pool is empty", "") }), cnierr.CodeUnavailable, "pool is empty")
	fake.WantCode(t, status(`"vlan":5000`, nil), cnierr.CodeConfig, "vlan")
}
