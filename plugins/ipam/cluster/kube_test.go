// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
)

const tenNet = `"range":"10.20.0.0/24"`

// The life of attachments against a real API server.
func TestPrivilegedKubernetes(t *testing.T) {
	s := kube(t)
	t.Run("verbs", func(t *testing.T) { testVerbs(t, s) })
	t.Run("dual stack", func(t *testing.T) { testDualStack(t, s) })
	t.Run("fixed addresses", func(t *testing.T) { testFixed(t, s) })
	t.Run("overlapping ranges", func(t *testing.T) { testOverlapping(t, s) })
	t.Run("reboot", func(t *testing.T) { testReboot(t, s) })
	t.Run("dead nodes", func(t *testing.T) { testDeadNodes(t, s) })
	t.Run("exact pool", func(t *testing.T) { testExactPool(t, s) })
	t.Run("edited by hand", func(t *testing.T) { testEdited(t, s) })
	t.Run("permissions", func(t *testing.T) { testPermissions(t, s) })
	t.Run("node slices", func(t *testing.T) { testSlices(t, s) })
	t.Run("whereabouts' attachments", func(t *testing.T) { testForeign(t, s) })
	t.Run("kept for pods of a StatefulSet", func(t *testing.T) { testKeptPods(t, s) })
	t.Run("kept for IPAMClaims", func(t *testing.T) { testIPAMClaims(t, s) })
	t.Run("kept, and the ADD was killed", func(t *testing.T) { testKeptIdle(t, s) })
	t.Run("history", func(t *testing.T) { testHistory(t, s) })
	t.Run("operator", func(t *testing.T) { testOperator(t, s) })
	t.Run("outage", func(t *testing.T) { testOutage(t, s) }) // last: the server is gone and comes back
}

func testVerbs(t *testing.T, s *kubetest.Server) {
	h := kubeHost(t, s, "verbs-1")
	ctx := context.Background()
	a := h.mustAdd("c1", tenNet)
	if again := h.mustAdd("c1", tenNet); again != a {
		t.Errorf("a repeated ADD got %s, the first had %s", again, a)
	}
	seen := map[netip.Addr]bool{a: true}
	for i := range 20 {
		b := h.mustAdd(fmt.Sprintf("d%d", i), tenNet)
		if seen[b] {
			t.Fatalf("%s twice", b)
		}
		seen[b] = true
	}
	if h.runs != 1 || h.calls > 7 {
		t.Errorf("21 ADDs ran the store program %d times, with %d requests", h.runs, h.calls)
	}
	all := allocations(t, s, "10.20.0.0-24")
	if len(all) != 31 { // an eighth of the pool is less than a block
		t.Errorf("%d entries in the pool", len(all))
	}
	for off, e := range all {
		if !strings.HasPrefix(e["id"], "sluice/verbs-1/") || e["podref"] != "" {
			t.Errorf("offset %s: %v", off, e)
		}
	}
	prev := fmt.Sprintf(`,"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"%s/24"}]}`, a)
	if err := h.plugin.Check(ctx, h.args("c1", tenNet, prev)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	wantCode(t, h.plugin.Check(ctx, h.args("d1", tenNet, prev)), cnierr.CodeCheck, "10.20.0.0-24")
	wantCode(t, h.plugin.Check(ctx, h.args("nobody", tenNet, prev)), cnierr.CodeCheck, "nobody")
	if err := h.plugin.Status(ctx, h.args("", tenNet)); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	h.mustDel("c1", tenNet)
	h.mustDel("c1", tenNet)
	if err := h.plugin.GC(ctx, h.args("", tenNet, `,"cni.dev/valid-attachments":[{"containerID":"d0","ifname":"net1"}]`)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, h.plugin.Check(ctx, h.args("d1", tenNet)), cnierr.CodeCheck)
	if err := h.plugin.Check(ctx, h.args("d0", tenNet)); err != nil {
		t.Errorf("GC took the address of a valid attachment: %v", err)
	}
}

func testDualStack(t *testing.T, s *kubetest.Server) {
	h := kubeHost(t, s, "dual-1")
	extra := `"range":"10.21.0.0/24","gateway":"10.21.0.1","exclude":["10.21.0.64/26","10.21.0.5"],"ipRanges":[{"range":"fd21::/64"}],"addresses":[{"address":"10.99.0.2/16"}]`
	for i := range 70 {
		got, err := h.add(h.args(fmt.Sprintf("c%d", i), extra))
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 3 || !got[0].Is4() || !got[1].Is6() || got[2].String() != "10.99.0.2" {
			t.Fatalf("%v", got)
		}
		if got[0].String() == "10.21.0.1" || got[0].String() == "10.21.0.5" || netip.MustParsePrefix("10.21.0.64/26").Contains(got[0]) {
			t.Fatalf("%s is gateway or excluded", got[0])
		}
	}
	if n := len(allocations(t, s, "fd21---64")); n < 70 || n > 160 {
		t.Errorf("%d entries of IPv6", n)
	}
}

func testFixed(t *testing.T, s *kubetest.Server) {
	h, other := kubeHost(t, s, "fixed-1"), kubeHost(t, s, "fixed-2")
	extra := `"range":"10.22.0.0/24","range_end":"10.22.0.99","exclude":["10.22.0.200/29"],"gateway":"10.22.0.1"`
	ask := func(h *host, id, ip string) ([]netip.Addr, error) {
		return h.add(h.args(id, extra, fmt.Sprintf(`,"runtimeConfig":{"ips":[%q]}`, ip)))
	}
	got, err := ask(h, "c1", "10.22.0.150/24")
	if err != nil || got[0].String() != "10.22.0.150" {
		t.Fatalf("%v %v", got, err)
	}
	// Another's address, on this node and on another one: the pod does not get it, on any way of asking.
	_, err = ask(h, "c2", "10.22.0.150")
	wantCode(t, err, cnierr.CodeConflict, "10.22.0.150", "c1")
	_, err = ask(other, "c3", "10.22.0.150")
	wantCode(t, err, cnierr.CodeConflict, "10.22.0.150", "fixed-1")
	for _, ip := range []string{"10.22.0.1", "10.22.0.0", "10.22.0.255", "10.22.0.201", "10.23.0.5"} {
		_, err = ask(h, "c4", ip)
		wantCode(t, err, cnierr.CodeConfig, ip, "runtimeConfig.ips[0]")
	}
	a := h.args("c5", extra)
	a.Args += ";IP=10.22.0.151/24"
	if got, err := h.add(a); err != nil || got[0].String() != "10.22.0.151" {
		t.Errorf("CNI_ARGS: %v %v", got, err)
	}
	h.mustDel("c1", extra)
	if got, err := ask(h, "c6", "10.22.0.150"); err != nil || got[0].String() != "10.22.0.150" {
		t.Errorf("after DEL: %v %v", got, err)
	}
}

func testOutage(t *testing.T, s *kubetest.Server) {
	h, late := kubeHost(t, s, "outage-1"), kubeHost(t, s, "outage-2")
	extra := `"range":"10.40.0.0/22"`
	first := h.mustAdd("c0", extra)
	s.Stop()
	defer s.Start()
	for i := range 31 {
		h.mustAdd(fmt.Sprintf("d%d", i), extra)
	}
	_, err := h.add(h.args("e", extra))
	wantCode(t, err, cnierr.CodeTryAgain, "10.40.0.0-22")
	h.mustDel("e", extra)
	if f, err := blocks.Open(t.Context(), h.dir, conf.Kubernetes, "10.40.0.0-22"); err != nil || len(f.Owed) > 0 {
		t.Errorf("DEL of an ADD that failed waits for the store: %+v %v", f.Owed, err)
	} else {
		f.Close()
	}
	_, err = late.add(late.args("e", extra))
	wantCode(t, err, cnierr.CodeTryAgain)
	wantCode(t, h.plugin.Status(context.Background(), h.args("", extra)), cnierr.CodeUnavailable)
	h.mustDel("c0", extra)
	if err := h.plugin.Status(context.Background(), h.args("", extra)); err != nil {
		t.Errorf("STATUS with an address to give: %v", err)
	}
	if again := h.mustAdd("c0b", extra); again != first {
		t.Errorf("%s was free, got %s", first, again)
	}
}
