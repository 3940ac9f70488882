// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// TestPrivilegedNothingLeft fails ADD at every step and looks for leftovers.
func TestPrivilegedNothingLeft(t *testing.T) {
	boom := errors.New("boom")
	const spoof = `"bridge":"br0","isGateway":true,"ipMasq":true,"ipMasqBackend":"ebpf","macspoofchk":true,"promiscMode":true,"ipam":{"type":"fake"}`
	tests := []struct {
		name string
		conf string
		prep func(*rig, *netlab.Pod)
		code uint
		says string
	}{
		{"IPAM fails", spoof, func(r *rig, _ *netlab.Pod) { r.ipam.AddErr = types.NewError(11, "try later", "") }, 11, "try later"},
		{"no address", spoof, func(r *rig, _ *netlab.Pod) {
			r.ipam.Answer = func(int) *types100.Result { return &types100.Result{} }
		}, cnierr.CodeConfig, "no address"},
		{"odd address", spoof, func(r *rig, _ *netlab.Pod) {
			r.ipam.Answer = func(int) *types100.Result {
				return &types100.Result{IPs: []*types100.IPConfig{{}}}
			}
		}, cnierr.CodeDecode, "address"},
		{"route that the kernel refuses", spoof, func(r *rig, _ *netlab.Pod) {
			r.ipam.Answer = func(n int) *types100.Result {
				x := answer4(n)
				x.Routes = []*types.Route{{Dst: fake.CIDR("192.0.2.0/24"), GW: fake.IP("203.0.113.9/32", "203.0.113.9").Gateway}}
				return x
			}
		}, cnierr.CodeKernel, "routes"},
		{"datapath refuses", spoof, func(r *rig, _ *netlab.Pod) { r.dp.Fail = map[string]error{"Enable": boom} }, cnierr.CodeKernel, "boom"},
		{"no datapath", spoof, func(r *rig, _ *netlab.Pod) { r.dp.OpenErr = fmt.Errorf("old kernel: %w", loader.ErrUnavailable) }, cnierr.CodeNoDatapath, "old kernel"},
		{"no nft", spoof, func(r *rig, _ *netlab.Pod) {
			r.nft.missing, r.tables = true, true
			r.plug = New(r.deps())
		}, cnierr.CodeNoDatapath, "nft"},
		{"neither eBPF nor nft", `"bridge":"br0","macspoofchk":true`, func(r *rig, _ *netlab.Pod) {
			r.dp.OpenErr, r.nft.missing = fmt.Errorf("old kernel: %w", loader.ErrUnavailable), true
		}, cnierr.CodeNoDatapath, "old kernel"},
		{"nft fails", spoof, func(r *rig, _ *netlab.Pod) {
			r.tables = true
			r.plug = New(r.with(failingNFT{}))
		}, cnierr.CodeKernel, "nft says no"},
		{"records cannot be written", spoof, func(r *rig, _ *netlab.Pod) {
			if err := os.WriteFile(r.dir.Path(), nil, 0o600); err != nil {
				r.t.Fatal(err)
			}
		}, cnierr.CodeState, "record"},
		{"odd conflict", spoof, func(r *rig, _ *netlab.Pod) {
			r.host(func(h *rtnl.Handle) error { return h.AddVeth(rtnl.VethSpec{HostName: "br0", PeerName: "x"}) })
		},
			cnierr.CodeConflict, "br0"},
		{"interface exists", spoof, func(_ *rig, p *netlab.Pod) {
			_ = p.Do(func() error {
				h, err := rtnl.New()
				if err != nil {
					return err
				}
				defer h.Close()
				return h.AddVeth(rtnl.VethSpec{HostName: "eth0", PeerName: "x"})
			})
		}, cnierr.CodeConflict, "eth0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			pod := r.node.PodT(t, "p1")
			tt.prep(r, pod)
			before, inPod := r.links(r.node.NS), r.links(pod.NS)
			_, err := r.add(call("1.1.0", "c1", "eth0", pod.Path, tt.conf))
			fake.WantCode(t, err, tt.code, tt.says)
			if diff := cmp.Diff(before, r.links(r.node.NS)); diff != "" {
				t.Errorf("links of the node (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(inPod, r.links(pod.NS)); diff != "" {
				t.Errorf("links of the pod (-before +after):\n%s", diff)
			}
			if tt.code != cnierr.CodeState {
				r.mustBeClean()
			}
		})
	}
}

// failingNFT refuses changes and lists nothing.
type failingNFT struct{}

func (failingNFT) Available() error { return nil }

func (failingNFT) Run(_ context.Context, stdin []byte, _ ...string) ([]byte, error) {
	if len(stdin) > 0 {
		return nil, errors.New("nft says no")
	}
	return []byte(`{"nftables":[]}`), nil
}

func TestPrivilegedBadNamespace(t *testing.T) {
	r := newRig(t)
	plain := t.TempDir() + "/file"
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/run/netns/none", plain, ""} {
		_, err := r.add(call("1.1.0", "c1", "eth0", path, life))
		fake.WantCode(t, err, cnierr.CodeNetNS)
	}
	_, err := r.add(call("1.1.0", "c1", "eth%d", r.node.PodT(t, "p1").Path, life))
	fake.WantCode(t, err, cnierr.CodeEnvironment, "CNI_IFNAME", "eth%d")
	r.mustBeClean()
	if r.dp.Opens != 0 || r.ipam.Adds != 0 {
		t.Error("a call with a bad namespace got further than it should")
	}
}

// TestPrivilegedFailureSparesOthers makes the ADD that made the bridge fail
// after another pod has joined it.
func TestPrivilegedFailureSparesOthers(t *testing.T) {
	r := newRig(t)
	first, second := r.node.PodT(t, "p1"), r.node.PodT(t, "p2")
	joined := false
	r.ipam.Before = func(a *cniskel.Args) {
		if a.ContainerID == "c1" && !joined {
			joined = true
			r.mustAdd(call("1.1.0", "c2", "eth0", second.Path, `"bridge":"br0","isGateway":true,"ipam":{"type":"fake"}`))
		}
	}
	r.dp.Fail = map[string]error{"Enable": errors.New("boom")}
	_, err := r.add(call("1.1.0", "c1", "eth0", first.Path, life))
	fake.WantCode(t, err, cnierr.CodeKernel, "boom")
	if got := r.state(r.node.NS, "br0"); len(got) < 2 || got[1] != "addr 10.1.0.1/16 tentative false" {
		t.Errorf("the other pod lost its bridge: %v", got)
	}
	if got := r.links(first.NS); len(got) != 1 {
		t.Errorf("left in the pod: %v", got)
	}
}

// TestPrivilegedInterrupted is told to end while the IPAM plugin works.
func TestPrivilegedInterrupted(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	ctx, cancel := context.WithCancel(t.Context())
	r.ipam.Before = func(*cniskel.Args) { cancel() }
	var err error
	if derr := r.node.Do(func() error {
		_, err = r.plug.Add(ctx, call("1.1.0", "c1", "eth0", pod.Path, full))
		return nil
	}); derr != nil {
		t.Fatal(derr)
	}
	fake.WantCode(t, err, cnierr.CodeTryAgain, "interrupted")
	r.mustBeClean(pod)
	if got := r.links(r.node.NS); len(got) != 1 {
		t.Errorf("left on the node: %v", got)
	}
}
