// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

var clusters = flag.Bool("clusters", false, "make clusters, too")

const interrupted = "interrupted"

// The test binary is also the program that makes a cluster and is killed, and that of the machines.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == machine.Role {
		if err := machine.Main(os.Args[2:]); err != nil {
			os.Exit(1)
		}
	}
	if len(os.Args) > 1 && os.Args[1] == interrupted {
		if _, err := Up(context.Background(), interrupted, Options{Nodes: 2, Proxy: "iptables", Plugins: Sluice, Main: "ptp"}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A program that is killed while it makes a cluster leaves what Down removes: no process, cgroup, mount, device or folder stays, whenever
// that was. A cluster of the same name can be made afterwards.
func TestPrivilegedInterrupted(t *testing.T) {
	require.Asked(t, *clusters, "make cluster-test")
	if _, err := kubebin.Build(t.Context(), Programs()...); err != nil {
		t.Fatal(err)
	}
	down := func() {
		t.Helper()
		if err := Down(interrupted); err != nil {
			t.Fatal(err)
		}
		remains(t)
	}
	down()
	before := hostState(t)
	for _, after := range []time.Duration{5 * time.Millisecond, 60 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 8 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		out, err := exec.CommandContext(ctx, os.Args[0], interrupted).CombinedOutput()
		cancel()
		if err == nil {
			t.Fatalf("a cluster is up after %s", after)
		}
		if !strings.Contains(err.Error(), "killed") {
			t.Fatalf("%v: %s", err, out)
		}
		down()
	}
	if out, err := exec.CommandContext(t.Context(), os.Args[0], interrupted).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := Up(t.Context(), interrupted, Options{Nodes: 1, Proxy: "iptables", Plugins: Sluice, Main: "ptp"}); err == nil {
		t.Error("a cluster is made twice")
	}
	down()
	if after := hostState(t); after != before {
		t.Errorf("this machine had\n%s\nand has\n%s", before, after)
	}
}

// What makes a cluster fails, or is interrupted, half way: the cause is said, and nothing stays.
func TestPrivilegedUpFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Up(ctx, interrupted, Options{Nodes: 1, Proxy: "iptables", Plugins: Sluice, Main: "ptp"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	remains(t)
}

// Down of a cluster that is not up leaves the others alone.
func TestPrivilegedDownOfNone(t *testing.T) {
	other := machine.Machine{Name: "node1", Dir: t.TempDir(), Group: group("beside") + "/node1"}
	if err := other.Launch(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(other.Remove(), machine.RemoveGroups(group("beside")), machine.RemoveEmptyGroup(groups)); err != nil {
			t.Error(err)
		}
	}()
	empty := filepath.Join(cgroupOf(t, other.Group), "kubepods")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := Down("never-was-up"); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > netlab.Patient(5*time.Second) {
		t.Errorf("it took %s", took)
	}
	if _, err := os.Stat(empty); err != nil {
		t.Error(err)
	}
}

// cgroupOf is where a group is in one of the hierarchies.
func cgroupOf(t *testing.T, group string) string {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		if found, err := filepath.Glob(pattern + group); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	t.Fatal("no cgroup " + group)
	return ""
}

// remains fails the test for what a cluster has left.
func remains(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, interrupted)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder: %v", err)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + group(interrupted))
	if err != nil || len(groups) > 0 {
		t.Errorf("cgroups %v %v", groups, err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if line, err := os.ReadFile(p); err == nil && strings.Contains(string(line), filepath.Join(root, interrupted)) {
			t.Errorf("%s: %q", p, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
}

// hostState is what a cluster must not change on this machine. Others may, but not by these names.
func hostState(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `ip -o link | grep -E ': (lan|to-|cni|veth.*node)' || true
ip -4 rule; ip -4 route; grep -c `+root+` /proc/self/mountinfo || true
ls -A /etc/cni/net.d /opt/cni/bin /var/lib/kubelet /run/containerd 2>&1 || true`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
