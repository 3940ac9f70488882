// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

func TestDiff(t *testing.T) {
	tests := []struct {
		name          string
		before, after Snapshot
		want          string
	}{
		{"equal", Snapshot{"a", "b"}, Snapshot{"b", "a"}, ""},
		{"more", Snapshot{"a"}, Snapshot{"a", "b"}, "+ b"},
		{"less", Snapshot{"a", "b"}, Snapshot{"b"}, "- a"},
		{"twice", Snapshot{"a"}, Snapshot{"a", "a"}, "+ a"},
		{"both", Snapshot{"a", "c"}, Snapshot{"b", "c"}, "- a\n+ b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, Diff(tt.before, tt.after)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestNFTLines(t *testing.T) {
	in := "table ip nat {\n\tchain OUTPUT {\n\t\ttype nat hook output priority -100; policy accept;\n\t\tfib daddr type local jump X\n\t}\n}\n"
	want := []string{
		"nft table ip nat",
		"nft table ip nat > chain OUTPUT",
		"nft table ip nat > chain OUTPUT > type nat hook output priority -100; policy accept;",
		"nft table ip nat > chain OUTPUT > fib daddr type local jump X",
	}
	if d := cmp.Diff(want, nftLines(in)); d != "" {
		t.Error(d)
	}
}

func mustSnapshot(t *testing.T, n *Node) Snapshot {
	t.Helper()
	s, err := n.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPrivilegedSnapshotIsStable(t *testing.T) {
	l := NewT(t)
	before := mustSnapshot(t, l.Node)
	l.Node.PodT(t, "a")
	if d := Diff(before, mustSnapshot(t, l.Node)); d != "" {
		t.Errorf("nothing happened, but:\n%s", d)
	}
}

// TestPrivilegedSnapshotSees makes one change of each kind and looks for it.
func TestPrivilegedSnapshotSees(t *testing.T) {
	tests := []struct{ cmd, want string }{
		{"ip link add br9 type bridge", "+ link br9 kind=bridge down"},
		{"ip link set eth0 mtu 1400", "+ link eth0 kind=veth up mtu=1400"},
		{"ip addr add 10.9.9.1/24 dev eth0", "+ addr eth0 10.9.9.1/24 scope global"},
		{"ip route add 10.8.0.0/16 dev eth0", "+ route 10.8.0.0/16 dev eth0"},
		{"ip route add 10.7.0.0/16 dev eth0 table 77", "+ route 10.7.0.0/16 dev eth0 table 77"},
		{"ip rule add from 10.1.1.1 lookup 77", "+ rule 32765: from 10.1.1.1 lookup 77"},
		{"ip neigh add 192.0.2.77 lladdr 02:00:00:00:00:01 dev eth0 nud permanent", "+ neigh 192.0.2.77 dev eth0"},
		{"tc qdisc add dev eth0 clsact", "+ qdisc clsact ffff: dev eth0"},
		{"nft add table ip probe", "+ nft table ip probe"},
		{"iptables -t nat -N CNI-PROBE", "chain CNI-PROBE"},
		{"mkdir /sys/fs/bpf/probe", "+ file /sys/fs/bpf/probe/"},
		{"touch /run/probe /var/lib/cni/probe", "+ file /var/lib/cni/probe"},
		{"sysctl -qw net.ipv4.ip_forward=1", "+ sysctl net/ipv4/ip_forward=1"},
	}
	l := NewT(t)
	for _, tt := range tests {
		t.Run(tt.cmd, func(t *testing.T) {
			before := mustSnapshot(t, l.Node)
			f := strings.Fields(tt.cmd)
			if err := l.Node.Do(func() error { _, err := Run(f[0], f[1:]...); return err }); err != nil {
				t.Fatal(err)
			}
			if d := Diff(before, mustSnapshot(t, l.Node)); !strings.Contains(d, tt.want) {
				t.Errorf("want %q in:\n%s", tt.want, d)
			}
		})
	}
}

// mustProgram loads a program that passes everything on.
func mustProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "lab_probe", Type: ebpf.SchedCLS, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	return prog
}

func TestPrivilegedSnapshotSeesFilter(t *testing.T) {
	prog := mustProgram(t)
	l := NewT(t)
	before := mustSnapshot(t, l.Node)
	err := l.Node.Do(func() error {
		if err := prog.Pin("/sys/fs/bpf/probe"); err != nil {
			return err
		}
		if _, err := Run("tc", "qdisc", "add", "dev", "eth0", "clsact"); err != nil {
			return err
		}
		_, err := Run("tc", "filter", "add", "dev", "eth0", "egress", "bpf", "da", "object-pinned", "/sys/fs/bpf/probe")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got := Snapshot(strings.Split(Diff(before, mustSnapshot(t, l.Node)), "\n"))
	if len(got.Grep("filter eth0 egress").Grep("probe")) == 0 {
		t.Errorf("no filter in:\n%s", got)
	}
}

func TestPrivilegedSnapshotSeesTCX(t *testing.T) {
	prog := mustProgram(t)
	l := NewT(t)
	before := mustSnapshot(t, l.Node)
	err := l.Node.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		lnk, err := link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		return lnk.Pin("/sys/fs/bpf/probe")
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		require.TCX(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := "+ file /sys/fs/bpf/probe\n+ tcx eth0 ingress lab_probe"
	if d := cmp.Diff(want, Diff(before, mustSnapshot(t, l.Node))); d != "" {
		t.Error(d)
	}
}

func TestPrivilegedFilesOfLabAreNotNews(t *testing.T) {
	l := NewT(t)
	s := mustSnapshot(t, l.Node)
	if got := s.Grep(KeepDir); len(got) > 0 {
		t.Errorf("the lab's own files are listed: %v", got)
	}
	err := l.Node.Do(func() error { return os.WriteFile("/run/x", nil, 0o600) })
	if err != nil {
		t.Fatal(err)
	}
	after := mustSnapshot(t, l.Node)
	if d := Diff(s, after.Without("file /run/x")); d != "" {
		t.Error(d)
	}
}
