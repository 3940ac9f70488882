// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/json"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/sluice-cni/sluice/pkg/test/bpftest"
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// foreignProgram is a tc program of a third party: it counts packets and has no verdict.
type foreignProgram struct {
	counts *ebpf.Map
	prog   *ebpf.Program
}

func newForeignProgram(t testing.TB) *foreignProgram {
	t.Helper()
	counts := bpftest.NewMap(t, &ebpf.MapSpec{Name: "stranger", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TCX_NEXT
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	return &foreignProgram{counts, prog}
}

func attachForeignProgram(t testing.TB, n *netlab.Node, dev string, anchor link.Anchor) *foreignProgram {
	t.Helper()
	s := newForeignProgram(t)
	var l link.Link
	err := n.Do(func() (err error) {
		l, err = link.AttachTCX(link.TCXOptions{Interface: ifindex(t, dev), Program: s.prog, Attach: ebpf.AttachTCXIngress, Anchor: anchor})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return s
}

// ifindex must run inside the namespace of the device.
func ifindex(t testing.TB, dev string) int {
	t.Helper()
	out, err := netlab.Run("ip", "-j", "link", "show", "dev", dev)
	if err != nil {
		t.Fatal(err)
	}
	var links []struct {
		Index int `json:"ifindex"`
	}
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		t.Fatalf("ip link show %s: %v: %s", dev, err, out)
	}
	return links[0].Index
}

func (s *foreignProgram) seen(t testing.TB) uint64 {
	t.Helper()
	var n uint64
	if err := s.counts.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Programs of a third party on our devices, attached before and after ours,
// keep running, and stay when ours go.
func TestPrivilegedOtherTCXPrograms(t *testing.T) {
	t.Parallel()
	require.TCX(t)
	w := e2etest.NewWorld(t)
	early := attachForeignProgram(t, w.Node, "eth0", nil)
	rt := w.Runtime(e2etest.Net0())
	p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	late := attachForeignProgram(t, w.Node, "eth0", link.Head())
	onPod := attachForeignProgram(t, w.Node, p.HostVeth(), link.Head())
	e2etest.AssertHostPort(t, w, "web")
	for name, s := range map[string]*foreignProgram{"attached before ours": early, "attached after ours": late, "on the pod's device": onPod} {
		if s.seen(t) == 0 {
			t.Errorf("the program %s saw nothing", name)
		}
	}
	again := w.AddPod(rt, "again", e2etest.TCP(8081, 80))
	again.MustDel()
	p.MustDel()
	before := early.seen(t)
	if err := e2etest.Ping(w.Client(), e2etest.Families()[0], e2etest.Families()[0].Node(w.Client()), 1, 1); err != nil {
		t.Fatal(err)
	}
	if early.seen(t) == before {
		t.Error("the program attached before ours no longer runs after DEL")
	}
}

// The same for classic filters: they are asked after ours, and stay.
func TestPrivilegedOtherFilters(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	s := newForeignProgram(t)
	const pin = "/sys/fs/bpf/stranger"
	w.DoOnNode(func() error { return s.prog.Pin(pin) })
	e2etest.MustRun(t, w.Node, "tc qdisc add dev eth0 clsact")
	e2etest.MustRun(t, w.Node, "tc filter add dev eth0 ingress prio 7 bpf direct-action object-pinned "+pin)
	rt := w.Runtime(e2etest.Net0())
	p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, p, "web", ":80")
	e2etest.AssertHostPort(t, w, "web")
	if s.seen(t) == 0 {
		t.Error("the filter on eth0 saw nothing")
	}
	p.MustDel()
	before := s.seen(t)
	if err := e2etest.Ping(w.Client(), e2etest.Families()[0], e2etest.Families()[0].Node(w.Client()), 1, 1); err != nil {
		t.Fatal(err)
	}
	if s.seen(t) == before {
		t.Error("the filter on eth0 no longer runs after DEL")
	}
}
