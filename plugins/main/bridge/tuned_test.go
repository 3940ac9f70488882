// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/plugins/meta/tuning"
)

// bridge with ipMasq, then tuning with mtu: a healthy pod, which CHECK calls broken.
func TestPrivilegedTunedMTU(t *testing.T) {
	w := fake.NewWorld(t, Name)
	open, existing := fake.RealOpeners()
	_, texisting := fake.RealOpeners()
	br := New(Deps{IPAM: &fake.IPAM{Answer: answer4, Held: map[string]bool{}}, Records: w.Records, Opener: Opener{Open: open, OpenExisting: existing}})
	tu := tuning.New(tuning.Deps{Records: w.Records, OpenExisting: texisting})
	pod := w.Lab.Node.PodT(t, "p1")
	for _, v := range []string{"1.0.0", "1.1.0"} {
		conf := `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"ebpf","ipam":{"type":"fake"}`
		a := call(v, "c1", "eth0", pod.Path, conf)
		verb := func(f func(context.Context, *cniskel.Args) error, a *cniskel.Args) error {
			return w.In(func() error { return f(t.Context(), a) })
		}
		add := func(p *cniskel.Plugin, a *cniskel.Args) (res types.Result) {
			if err := verb(func(ctx context.Context, a *cniskel.Args) (err error) { res, err = p.Add(ctx, a); return err }, a); err != nil {
				t.Fatal(err)
			}
			return res
		}
		with := func(a *cniskel.Args, res types.Result) *cniskel.Args {
			raw, _ := json.Marshal(res)
			b := *a
			b.StdinData = []byte(strings.TrimSuffix(string(a.StdinData), "}") + `,"prevResult":` + string(raw) + "}")
			return &b
		}
		res := add(br, a)
		if err := verb(br.Check, with(a, res)); err != nil {
			t.Fatalf("CHECK before tuning: %v", err)
		}
		ta := call(v, "c1", "eth0", pod.Path, `"mtu":1400,"dataDir":"`+t.TempDir()+`"`)
		final := add(tu, with(ta, res))
		if err := verb(br.Check, with(a, final)); err != nil {
			t.Errorf("%s: CHECK of a tuned, healthy pod: %v", v, err)
		}
		if err := verb(tu.Check, with(ta, final)); err != nil {
			t.Errorf("%s: tuning CHECK: %v", v, err)
		}
		if err := verb(tu.Del, with(ta, final)); err != nil {
			t.Error(err)
		}
		if err := verb(br.Del, with(a, final)); err != nil {
			t.Error(err)
		}
	}
}
