// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Snapshot reads the node's state, without the link-local addresses that the kernel makes
// in its own time (duplicate address detection, RFC 4862).
func (w *World) Snapshot() netlab.Snapshot {
	w.T.Helper()
	s, err := w.Node.Snapshot()
	if err != nil {
		w.T.Fatal(err)
	}
	return slices.DeleteFunc(s, func(line string) bool {
		return strings.Contains(line, "fe80:") && (strings.HasPrefix(line, "addr ") || strings.HasPrefix(line, "route "))
	})
}

// SyncedSnapshot is Snapshot after "sluice resync". Not every verb looks for uplinks
// again, and a bridge without pods is one, like any other device with an address.
func (w *World) SyncedSnapshot() netlab.Snapshot {
	w.T.Helper()
	MustRun(w.T, w.Node, Programs.Path("sluice")+" resync")
	return w.Snapshot()
}

// Warmup makes and removes one pod of a network, so that what stays on the node by design
// is there: the bridge, the loaded programs, the allocator's cursor. It returns the
// SyncedSnapshot to compare with.
func (w *World) Warmup(rt *netlab.Runtime, ports ...PortMapping) netlab.Snapshot {
	w.T.Helper()
	p := w.AddPod(rt, "settle", ports...)
	p.MustDel()
	if err := p.Delete(); err != nil {
		w.T.Fatal(err)
	}
	return w.SyncedSnapshot()
}

// NodeAfterPod is Warmup that returns a plain Snapshot, for nodes whose backend loads no
// programs.
func (w *World) NodeAfterPod(rt *netlab.Runtime, ports ...PortMapping) netlab.Snapshot {
	w.T.Helper()
	p := w.AddPod(rt, "settle", ports...)
	p.MustDel()
	if err := p.Delete(); err != nil {
		w.T.Fatal(err)
	}
	return w.Snapshot()
}

// AssertNothingLeft fails the test if a SyncedSnapshot differs from the one of before.
func (w *World) AssertNothingLeft(before netlab.Snapshot) {
	w.T.Helper()
	if d := netlab.DiffSoon(before, w.SyncedSnapshot); d != "" {
		w.T.Errorf("the node differs (- gone, + left behind):\n%s", d)
	}
}

// AssertUnchanged fails the test if a plain Snapshot differs from the one of before. when
// begins the message.
func (w *World) AssertUnchanged(before netlab.Snapshot, when string) {
	w.T.Helper()
	if d := netlab.DiffSoon(before, w.Snapshot); d != "" {
		w.T.Errorf("%s the node differs (- gone, + left behind):\n%s", when, d)
	}
}

// NetfilterRules is the netfilter part of a snapshot, without the guard of
// route_localnet: upstream leaves that on, like the setting that it guards.
func NetfilterRules(s netlab.Snapshot) netlab.Snapshot {
	return slices.DeleteFunc(slices.Clone(s), func(l string) bool {
		return !strings.HasPrefix(l, "nft ") && !strings.HasPrefix(l, "iptables ") ||
			strings.Contains(l, "sluice_localnet") || strings.Contains(l, "sluice: no 127.0.0.0/8") || strings.Contains(l, "table ip mangle")
	})
}
