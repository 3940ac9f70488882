// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// world is a node with the real datapath, a FORWARD hook that drops what lacks
// the admit mark, and one routed pod that a third party's main plugin might have
// made.
type world struct{ *plugintest.World }

func newWorld(t *testing.T) *world {
	w := &world{plugintest.NewWorld(t, Name)}
	open, existing := plugintest.RealOpeners()
	w.Plugin = New(Deps{Opener: Opener{Open: open, OpenExisting: existing}, Resolve: loader.Resolve, Records: w.Records})
	w.RunScripts("nft add table inet filter",
		"nft 'add chain inet filter forward { type filter hook forward priority 0; policy drop; }'",
		"nft add rule inet filter forward meta mark and 0x1000 == 0x1000 accept")
	w.pod()
	w.AwaitAddresses()
	return w
}

// pod makes the pod "a" with 10.1.0.2 and fd00:1::2.
func (w *world) pod() {
	w.T.Helper()
	w.Pod("a", "pod")
	w.RunScripts("ip link add v0 type veth peer name eth0 netns a",
		"ip addr add 10.1.0.1/24 dev v0", "ip addr add fd00:1::1/64 dev v0 nodad", "ip link set v0 up",
		"ip -n a link set lo up", "ip -n a addr add 10.1.0.2/24 dev eth0", "ip -n a addr add fd00:1::2/64 dev eth0 nodad",
		"ip -n a link set eth0 up", "ip -n a route add default via 10.1.0.1", "ip -n a route add default via fd00:1::1")
}

// reach returns the error of a request from the client to the pod's address.
func (w *world) reach(host string) error {
	client := w.Lab.Client().HTTPClient(time.Second)
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + host + "/")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (w *world) do(f func() error) { w.T.Helper(); plugintest.Must(w.T, w.In(f)) }

var realConf = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"firewall",
	"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
	"ips":[{"interface":0,"address":"10.1.0.2/24"},{"interface":0,"address":"fd00:1::2/64"}]}}`)

func TestPrivilegedAdmit(t *testing.T) {
	w := newWorld(t)
	add := func() error { _, err := w.Add("a", realConf); return err }
	check := func() error { return w.Plugin.Check(t.Context(), w.Args("a", realConf)) }
	del := func() error { return w.Del("a") }

	w.do(add) // the first attachment also attaches to the uplinks
	w.do(del)
	before := w.Snapshot()
	w.WantCode(w.Lab.Node.Do(check), cnierr.CodeCheck)

	w.do(add)
	w.do(add)
	w.do(check)
	if features := w.features(); cmp.Diff([]string{"admit"}, features) != "" {
		t.Errorf("features %v", features)
	}
	// The pod opens: admitted by what it sends, and so are the answers.
	for _, to := range []string{netlab.IP4(w.Lab.Client().Uplink.Client).String(), netlab.IP6(w.Lab.Client().Uplink.Client).String()} {
		w.RunScripts("ip netns exec a ping -c 1 -W 2 " + to)
	}
	w.do(del)
	w.do(del)
	if diff := netlab.DiffSoon(before, w.Snapshot); diff != "" {
		t.Errorf("left behind:\n%s", diff)
	}
	for _, host := range []string{"10.1.0.2", "[fd00:1::2]"} {
		if err := w.reach(host); err == nil {
			t.Errorf("%s is still admitted", host)
		}
	}
}

func (w *world) features() (out []string) {
	w.T.Helper()
	w.do(func() error {
		dp, err := loader.OpenExisting(w.T.Context(), loader.Options{})
		if err != nil {
			return err
		}
		eps, err := dp.Endpoints(w.T.Context())
		for _, e := range eps {
			out = append(out, e.Features...)
		}
		return errors.Join(err, dp.Close())
	})
	return out
}

func TestPrivilegedGC(t *testing.T) {
	w := newWorld(t)
	w.do(func() error { _, err := w.Add("a", realConf); return err })
	w.do(func() error {
		return w.Plugin.GC(t.Context(), w.Args("", []byte(`{"cniVersion":"1.1.0","name":"other","cni.dev/valid-attachments":[]}`)))
	})
	if f := w.features(); len(f) != 1 {
		t.Errorf("the GC of another network left %v", f)
	}
	w.do(func() error {
		return w.Plugin.GC(t.Context(), w.Args("", []byte(`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`)))
	})
	if f := w.features(); len(f) != 0 {
		t.Errorf("GC left %v", f)
	}
}
