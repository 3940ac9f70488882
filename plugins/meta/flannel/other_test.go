// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// A second flannel network, whose flanneld is not ready, fails. Its DEL comes
// first, then that of the first network, which must reach the delegate.
func TestDelOfOtherNetwork(t *testing.T) {
	n, ctx := newNode(t), t.Context()
	_, err := n.p.Add(ctx, n.args("c1", "eth0", nil))
	must(t, err)
	other := func() *cniskel.Args {
		return n.args("c1", "net1", map[string]any{"name": "second", "subnetFile": "/none"})
	}
	if _, err := n.p.Add(ctx, other()); err == nil {
		t.Fatal("ADD should fail: there is no subnet.env")
	}
	n.fake.calls = nil
	must(t, n.p.Del(ctx, other()))
	n.wantFiles("c1")
	n.fake.calls = nil
	must(t, n.p.Del(ctx, n.args("c1", "eth0", nil)))
	if len(n.fake.calls) != 1 {
		t.Errorf("DEL of the first network did not reach its delegate, its interface and address leak: %v", n.fake.calls)
	}
	n.wantFiles()
}

// The runtime calls DEL after a failed ADD; what made ADD fail must not make DEL fail.
func TestDelOfRefusedConf(t *testing.T) {
	n, ctx := newNode(t), t.Context()
	_, err := n.p.Add(ctx, n.args("c1", "eth0", nil))
	must(t, err)
	bad := map[string]any{"delegate": map[string]any{"name": "x"}}
	if _, err := n.p.Add(ctx, n.args("c2", "eth0", bad)); err == nil {
		t.Fatal("ADD should fail")
	}
	for _, id := range []string{"c1", "c2"} {
		if err := n.p.Del(ctx, n.args(id, "eth0", bad)); err != nil {
			t.Errorf("DEL of %s: %v", id, err)
		}
	}
	n.wantFiles()
}
