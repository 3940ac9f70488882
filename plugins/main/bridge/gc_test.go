// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// A masqueraded pod that has lost its record and its device leaves an entry in
// the datapath. GC removes it, without a chained plugin in the list that would.
func TestPrivilegedGCOfLostMasquerade(t *testing.T) {
	w := fake.NewWorld(t, Name)
	open, existing := fake.RealOpeners()
	w.Plugin = New(Deps{IPAM: &fake.IPAM{Answer: answer4, Held: map[string]bool{}}, Records: w.Records, Opener: Opener{Open: open, OpenExisting: existing}})
	verb := func(f func(context.Context, *cniskel.Args) error, a *cniskel.Args) {
		t.Helper()
		if err := w.In(func() error { return f(t.Context(), a) }); err != nil {
			t.Fatal(err)
		}
	}
	conf := `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"ebpf","ipam":{"type":"fake"}`
	owners := func() map[uint64]bool {
		t.Helper()
		out := make(map[uint64]bool)
		verb(func(ctx context.Context, a *cniskel.Args) error {
			dp, err := existing(ctx, a)
			if err != nil {
				return err
			}
			defer dp.Close()
			eps, err := dp.Endpoints(ctx)
			for _, ep := range eps {
				out[ep.Owner] = true
			}
			return err
		}, call("1.1.0", "", "", "", ""))
		return out
	}
	for _, id := range []string{"kept", "alive", "lost"} {
		pod := w.Lab.Node.PodT(t, id)
		a := call("1.1.0", id, "eth0", pod.Path, conf)
		verb(func(ctx context.Context, a *cniskel.Args) error { _, err := w.Plugin.Add(ctx, a); return err }, a)
	}
	ref := func(id string) attachments.ID {
		return attachments.ID{Network: "net1", ContainerID: id, IfName: "eth0"}
	}
	verb(func(context.Context, *cniskel.Args) error { // the records are in the node's mount namespace
		device := (&plugin{Deps{Records: w.Records}}).loadSection(ref("lost"))
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		return errors.Join(device.Remove(h), w.Records.Remove(ref("lost"), Name), w.Records.Remove(ref("alive"), Name))
	}, nil)

	verb(w.Plugin.GC, call("1.1.0", "", "", "", `"cni.dev/valid-attachments":[{"containerID":"kept","ifname":"eth0"}],"ipam":{"type":"fake"}`))
	got := owners()
	if !got[ref("kept").Owner()] || !got[ref("alive").Owner()] {
		t.Errorf("GC took a pod that is there: %v", got)
	}
	if got[ref("lost").Owner()] {
		t.Error("GC left the endpoint of a pod that has neither record nor device")
	}
}
