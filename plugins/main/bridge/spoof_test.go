// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/file"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var spoofRef = attachments.ID{Network: "net1", ContainerID: "c1", IfName: "eth0"}

// TestSpoofRules pins the names, which the upstream plugin shares.
func TestSpoofRules(t *testing.T) {
	rules := spoofRules(spoofNamesOf(spoofRef), "veth01234567", "02:00:00:00:00:01")
	var got bytes.Buffer
	for _, r := range rules {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(append(b, '\n'))
	}
	golden := filepath.Join("testdata", "spoof.jsonl")
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestSpoofRemoveKeepsOthers(t *testing.T) {
	nft := &fakeNFT{}
	p := &plugin{Deps{NFT: nft}}
	a := call("1.1.0", "c1", "eth0", "", "")
	ctx := context.Background()
	other := attachments.ID{Network: "net1", ContainerID: "c2", IfName: "eth0"}
	for _, ref := range []attachments.ID{spoofRef, other, spoofRef} { // the second ADD of an attachment doubles its hook
		if err := p.nftApply(ctx, spoofRules(spoofNamesOf(ref), "veth"+ref.ContainerID, "02:00:00:00:00:01")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := p.removeSpoofCheck(ctx, a, spoofRef); err != nil {
			t.Fatal(err)
		}
	}
	if len(nft.chains) != 3 || len(nft.chains[spoofHook]) != 1 {
		t.Errorf("left: %v", nft.chains)
	}
	if err := p.removeSpoofCheck(ctx, a, other); err != nil || len(nft.chains) != 1 {
		t.Errorf("left: %v, %v", nft.chains, err)
	}
	nft.fail = errors.New("boom")
	fake.WantCode(t, p.removeSpoofCheck(ctx, a, other), cnierr.CodeKernel, "boom")
	nft.missing = true
	if err := p.removeSpoofCheck(ctx, a, other); err != nil {
		t.Errorf("without nft: %v", err)
	}
}

// TestPrivilegedSpoofNFT runs the real nft. It needs CONFIG_NF_TABLES_BRIDGE;
// where the kernel lacks the family, the refusal must say so and leave nothing.
func TestPrivilegedSpoofNFT(t *testing.T) {
	r := newNFTablesRig(t)
	pod := r.node.PodT(t, "p1")
	r.plug = New(r.with(nil))
	a := call("1.1.0", "c1", "eth0", pod.Path, `"macspoofchk":true,"isGateway":true,"ipam":{"type":"fake"}`)
	res, err := r.add(a)
	if err != nil && strings.Contains(err.Error(), "not supported") {
		fake.WantCode(t, err, cnierr.CodeKernel, "source MAC check")
		r.mustBeClean(pod)
		require.NFTFamily(t, "bridge")
		t.Fatal("refused on a kernel with nftables' bridge family")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	p := &plugin{Deps{NFT: nftProgram{}}}
	if err := r.node.Do(func() error {
		return p.removeSpoofCheck(context.Background(), a, attachments.ID{Network: "net1", ContainerID: "c1", IfName: "eth0"})
	}); err != nil {
		t.Fatal(err)
	}
	fake.WantCode(t, r.check(a, res), cnierr.CodeCheck, "source MAC check")
	if err := r.del(a); err != nil {
		t.Fatal(err)
	}
	r.mustBeClean(pod)
}

// A call waits for an nft that is at work no longer than it may, and says then that it can be tried again.
func TestSpoofWaitsForItsTurn(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "run", "macspoofchk.lock")
	held, err := file.AcquireLock(t.Context(), lock)
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{Deps{NFT: nftProgram{lock: lock}}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = p.listSpoof(ctx, spoofNamesOf(spoofRef))
	fake.WantCode(t, nftFailed(err, "list the source MAC check"), cnierr.CodeTryAgain, "list the source MAC check")
	if !strings.Contains(err.Error(), lock) {
		t.Errorf("%v does not name %s", err, lock)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := file.AcquireLock(t.Context(), lock)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// With eBPF a pod without addresses is checked too, and nft is not needed. A pod whose rules an older build has made keeps them until DEL.
func TestPrivilegedSpoofEBPF(t *testing.T) {
	for _, conf := range []string{`"bridge":"br0","macspoofchk":true`, full} {
		r := newRig(t)
		r.nft.missing = true
		pod := r.node.PodT(t, "p1")
		a := call("1.1.0", "c1", "eth0", pod.Path, conf)
		res := r.mustAdd(a)
		held := r.dp.Held[ref1.Owner()]
		if held == nil || held.Features&loader.FeatureMACCheck == 0 || held.MACCheck.MAC.String() != res.Interfaces[2].Mac || held.MACCheck.HostIfName != res.Interfaces[1].Name {
			t.Fatalf("%s: the datapath has %+v", conf, held)
		}
		if err := r.check(a, res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		held.MACCheck.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}
		fake.WantCode(t, r.check(a, res), cnierr.CodeCheck, "source MAC check differs")
		r.dp.Loaded = false
		fake.WantCode(t, r.check(a, res), cnierr.CodeCheck, "source MACs are not checked")
		r.dp.Loaded = true
		if err := r.del(call("1.1.0", "c1", "eth0", "", "")); err != nil {
			t.Fatal(err)
		}
		r.mustBeClean(pod)
	}
}

// The node goes from nftables to eBPF: pods keep what they have, a repeated ADD takes the other, and DEL leaves nothing of either.
func TestPrivilegedSpoofOtherBackend(t *testing.T) {
	r := newNFTablesRig(t)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","macspoofchk":true`)
	res := r.mustAdd(a)
	if len(r.nft.chains) != 3 || len(r.dp.Held) != 0 {
		t.Fatalf("chains %v, datapath %v", r.nft.chains, r.dp.Held)
	}
	r.tables = false
	r.plug = New(r.deps())
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK of a pod of before: %v", err)
	}
	if err := pod.Do(func() error { return exec.Command("ip", "link", "del", "eth0").Run() }); err != nil {
		t.Fatal(err)
	}
	r.mustAdd(a)
	if len(r.nft.chains) != 1 || len(r.dp.Held) != 1 {
		t.Errorf("after a repeated ADD: chains %v, datapath %v", r.nft.chains, r.dp.Held)
	}
	if err := r.del(a); err != nil {
		t.Fatal(err)
	}
	r.mustBeClean(pod)
}

// eBPF that cannot run leaves the check to nftables, unless the node asks for eBPF.
func TestPrivilegedSpoofFallback(t *testing.T) {
	r := newRig(t)
	r.dp.OpenErr = fmt.Errorf("old kernel: %w", loader.ErrUnavailable)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","macspoofchk":true`)
	res := r.mustAdd(a)
	if len(r.nft.chains) != 3 {
		t.Errorf("chains %v", r.nft.chains)
	}
	if err := errors.Join(r.check(a, res), r.del(a)); err != nil {
		t.Error(err)
	}
	r.mustBeClean(pod)
}
