// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// What our own pods leave when their namespaces go without a DEL is named and
// removed by every backend, records and map entries too, and a living pod keeps
// all it has.
func TestPrivilegedCleanupOfSluicePods(t *testing.T) {
	set := mustBuild(t)
	for _, backend := range []string{"ebpf", "iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			l := netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
			firewall := map[string]any{"type": "firewall", "backend": backend}
			rt := runtimeOf(t, l.Node, set.Dir, chain(t, "net0", "cni0", "10.1.0.0/16", "fd00:10:1::/64", backend, firewall, limited))
			_, live := addPod(t, l.Node, rt, "live", 8080)
			settle, att := addPod(t, l.Node, rt, "settle", 8081)
			if err := rt.Del(t.Context(), att); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(settle.Delete(), l.Node.AwaitIPv6("cni0")); err != nil {
				t.Fatal(err)
			}
			steady := func() netlab.Snapshot {
				real(t, l.Node, "resync")
				return snapshot(t, l.Node).Without("file /var/lib/cni/")
			}
			before := steady()
			p, _ := addPod(t, l.Node, rt, "gone", 8082)
			deletePod(t, l.Node, p)

			var text strings.Builder
			for _, f := range findings(t, l.Node)["warning"] {
				text.WriteString(f.Text + "\n")
			}
			if !strings.Contains(text.String(), "record of net0/gone/eth0: the network namespace /run/netns/gone is gone") {
				t.Errorf("the doctor does not name the record:\n%s", text.String())
			}
			entries := "net0/gone/eth0: 1 devices and 2 published ports in the maps"
			if require.HasQdisc(t, "fq") {
				entries = "net0/gone/eth0: 1 devices, 2 published ports and 2 limits in the maps"
			}
			if backend == "ebpf" && !strings.Contains(text.String(), entries) {
				t.Errorf("the doctor does not name the entries:\n%s", text.String())
			}
			if v := realJSON[cleanupView](t, l.Node, "cleanup"); v.Removed || slices.ContainsFunc(v.Leftovers, func(x leftoverView) bool { return x.Removable && strings.Contains(x.What, "live") }) {
				t.Errorf("%+v", v)
			}
			if out, errs, status := real(t, l.Node, "cleanup", "--yes"); status != 1 || !strings.Contains(errs, "other mounts") {
				t.Errorf("without --force in a lab: exit status %d, %s%s", status, out, errs)
			}
			realJSON[cleanupView](t, l.Node, "cleanup", "--yes", "--force")
			if d := netlab.DiffSoon(before, steady); d != "" {
				t.Errorf("after the sweep (- gone, + left behind):\n%s", d)
			}
			if err := rt.Check(t.Context(), live); err != nil {
				t.Errorf("CHECK of the living pod: %v", err)
			}
			by := findings(t, l.Node)
			for _, f := range slices.Concat(by["warning"], by["problem"]) {
				if f.Check == "leftover" {
					t.Errorf("after the sweep: %+v", f)
				}
			}
		})
	}
}

// A bundle of a node with a pod has every part, and what is missing is noted.
func TestPrivilegedSysdump(t *testing.T) {
	set := mustBuild(t)
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
	rt := runtimeOf(t, l.Node, set.Dir, chain(t, "net0", "cni0", "10.1.0.0/16", "fd00:10:1::/64", "", map[string]any{"type": "firewall"}))
	addPod(t, l.Node, rt, "a", 8080)
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	v := realJSON[sysdumpView](t, l.Node, "sysdump", file)
	t.Logf("missing: %q", v.Missing)
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st, err)
	}
	files := readSysdump(t, file)
	for name, want := range map[string]string{
		"sluice/status.txt": "back end    ebpf", "sluice/hostports.json": `"host_port": 8080`, "sluice/doctor.json": `"findings"`, "sluice/endpoints.txt": "net0/a/eth0",
		"sluice/nat-pools.json": `"ports_total"`, "sluice/nat-stats.json": "[", "sluice/drops.json": "[",
		"records": `"containerID":"a"`, "net/addr": "cni0", "net/filters": "sl_from_pod", "netfilter/nft": "# nft list ruleset", "kernel/sysctls": "net/ipv4/ip_forward = 1",
		"README": "Not in this bundle", "state/files": "/var/lib/cni/results/net0-a-eth0",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q: %.300s", name, want, files[name])
		}
	}
	if _, errs, status := real(t, l.Node, "sysdump", file); status != 1 || !strings.Contains(errs, "exists") {
		t.Errorf("an archive that is there was overwritten: %d, %s", status, errs)
	}
}

func readSysdump(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		files[name] = string(content)
	}
}
