// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/pkg/test/lab"
)

// world is a node with the real datapath, a FORWARD hook that drops what lacks
// the admit mark, and one routed pod that a stranger's main plugin might have
// made.
type world struct {
	*node
	lab *lab.Lab
}

func newWorld(t *testing.T) *world {
	w := &world{node: &node{t: t}, lab: lab.NewT(t, lab.Options{ForwardIPv4: true, ForwardIPv6: true})}
	open := func(f func(context.Context, loader.Options) (*loader.Datapath, error)) func(context.Context, *cniplugin.Args) (Datapath, error) {
		return func(ctx context.Context, _ *cniplugin.Args) (Datapath, error) {
			dp, err := f(ctx, loader.Options{})
			if err != nil {
				return nil, err
			}
			return dp, nil
		}
	}
	w.records = store.Open(store.DefaultDir)
	w.plugin = New(Deps{Open: open(loader.Open), OpenExisting: open(loader.OpenExisting), Resolve: loader.Resolve, Records: w.records})
	t.Cleanup(func() { _ = w.lab.Node.Do(unload) })
	must(t, w.lab.Node.WriteSysctl("net/ipv6/conf/default/accept_dad", "0"))
	w.run("nft add table inet filter",
		"nft 'add chain inet filter forward { type filter hook forward priority 0; policy drop; }'",
		"nft add rule inet filter forward meta mark and 0x1000 == 0x1000 accept")
	w.pod()
	settle(t, w.lab.Node.NS, w.lab.Client().NS)
	return w
}

// settle waits until no address is tentative: what leaves before that may be
// lost, and addresses that appear later are news in a snapshot.
func settle(t testing.TB, namespaces ...*lab.NS) {
	t.Helper()
	for _, ns := range namespaces {
		deadline := time.Now().Add(lab.Patient(10 * time.Second))
		for tentative := "?"; tentative != ""; {
			must(t, ns.Do(func() (err error) {
				tentative, err = lab.Run("ip", "-6", "-o", "addr", "show", "tentative")
				return err
			}))
			if time.Now().After(deadline) {
				t.Fatalf("%s: still tentative: %s", ns.Name, tentative)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func unload() error {
	dp, err := loader.OpenExisting(context.Background(), loader.Options{})
	if err != nil {
		return err
	}
	defer dp.Close()
	return dp.Unload(context.Background())
}

func (w *world) run(lines ...string) {
	w.t.Helper()
	must(w.t, w.lab.Node.Do(func() error {
		for _, l := range lines {
			if _, err := lab.Run("sh", "-c", l); err != nil {
				return err
			}
		}
		return nil
	}))
}

// pod makes the pod "a" with 10.1.0.2 and fd00:1::2, which answers HTTP.
func (w *world) pod() {
	w.t.Helper()
	p := w.lab.Node.PodT(w.t, "a")
	must(w.t, p.WriteSysctl("net/ipv6/conf/default/accept_dad", "0"))
	w.run("ip link add v0 type veth peer name eth0 netns a",
		"ip addr add 10.1.0.1/24 dev v0", "ip addr add fd00:1::1/64 dev v0 nodad", "ip link set v0 up",
		"ip -n a link set lo up", "ip -n a addr add 10.1.0.2/24 dev eth0", "ip -n a addr add fd00:1::2/64 dev eth0 nodad",
		"ip -n a link set eth0 up", "ip -n a route add default via 10.1.0.1", "ip -n a route add default via fd00:1::1")
	stop, err := p.ServeHTTP("[::]:80", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "pod") }))
	must(w.t, err)
	w.t.Cleanup(func() { _ = stop() })
}

// reach returns the error of a request from the client to the pod's address.
func (w *world) reach(host string) error {
	client := w.lab.Client().HTTPClient(time.Second)
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + host + "/")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (w *world) do(f func() error) { w.t.Helper(); must(w.t, w.lab.Node.Do(f)) }

func (w *world) snapshot() lab.Snapshot {
	w.t.Helper()
	s, err := w.lab.Node.Snapshot()
	must(w.t, err)
	return s
}

var realConf = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"firewall",
	"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
	"ips":[{"interface":0,"address":"10.1.0.2/24"},{"interface":0,"address":"fd00:1::2/64"}]}}`)

func TestPrivilegedAdmit(t *testing.T) {
	w := newWorld(t)
	add := func() error { _, err := w.add("a", realConf); return err }
	check := func() error { return w.plugin.Check(t.Context(), w.args("a", realConf)) }
	del := func() error { return w.del("a") }

	w.do(add) // the first attachment also attaches to the uplinks
	w.do(del)
	before := w.snapshot()
	w.wantCode(w.lab.Node.Do(check), cnierr.CodeCheck)

	w.do(add)
	w.do(add)
	w.do(check)
	if features := w.features(); cmp.Diff([]string{"admit"}, features) != "" {
		t.Errorf("features %v", features)
	}
	// The pod opens: admitted by what it sends, and so are the answers.
	for _, to := range []string{lab.IP4(w.lab.Client().Uplink.Client).String(), lab.IP6(w.lab.Client().Uplink.Client).String()} {
		w.run("ip netns exec a ping -c 1 -W 2 " + to)
	}
	w.do(del)
	w.do(del)
	if diff := lab.Diff(before, w.snapshot()); diff != "" {
		t.Errorf("left behind:\n%s", diff)
	}
	for _, host := range []string{"10.1.0.2", "[fd00:1::2]"} {
		if err := w.reach(host); err == nil {
			t.Errorf("%s is still admitted", host)
		}
	}
}

func (w *world) features() (out []string) {
	w.t.Helper()
	w.do(func() error {
		dp, err := loader.OpenExisting(w.t.Context(), loader.Options{})
		if err != nil {
			return err
		}
		eps, err := dp.Endpoints(w.t.Context())
		for _, e := range eps {
			out = append(out, e.Features...)
		}
		return errors.Join(err, dp.Close())
	})
	return out
}

func TestPrivilegedGC(t *testing.T) {
	w := newWorld(t)
	w.do(func() error { _, err := w.add("a", realConf); return err })
	w.do(func() error {
		return w.plugin.GC(t.Context(), w.args("", []byte(`{"cniVersion":"1.1.0","name":"other","cni.dev/valid-attachments":[]}`)))
	})
	if f := w.features(); len(f) != 1 {
		t.Errorf("the GC of another network left %v", f)
	}
	w.do(func() error {
		return w.plugin.GC(t.Context(), w.args("", []byte(`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[]}`)))
	})
	if f := w.features(); len(f) != 0 {
		t.Errorf("GC left %v", f)
	}
}
