// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// world is a node with the real datapath and pods on a bridge that a third party's
// main plugin might have made.
type world struct{ *plugintest.World }

func newWorld(t testing.TB) *world {
	w := &world{plugintest.NewWorld(t, Name)}
	open, existing := plugintest.RealOpeners()
	w.Plugin = New(Deps{Opener: Opener{Open: open, OpenExisting: existing}, Resolve: loader.Resolve, Records: w.Records})
	w.RunScripts("ip link add br0 address 02:00:00:00:00:01 type bridge", "ip addr add 10.1.0.1/16 dev br0", "ip addr add fd00:1::1/64 dev br0 nodad",
		"ip link set br0 up")
	w.AwaitAddresses()
	return w
}

// pod makes a pod with the addresses 10.1.0.<n> and fd00:1::<n> that answers
// with its name.
func (w *world) pod(name string, n int) *netlab.Pod {
	w.T.Helper()
	p := w.Pod(name, name)
	w.RunScripts(
		fmt.Sprintf("ip link add v%d type veth peer name eth0 netns %s", n, name),
		fmt.Sprintf("ip link set v%d master br0 up", n),
		fmt.Sprintf("ip -n %s link set lo up", name),
		fmt.Sprintf("ip -n %s addr add 10.1.0.%d/16 dev eth0", name, n),
		fmt.Sprintf("ip -n %s addr add fd00:1::%d/64 dev eth0 nodad", name, n),
		fmt.Sprintf("ip -n %s link set eth0 up", name),
		fmt.Sprintf("ip -n %s route add default via 10.1.0.1", name),
		fmt.Sprintf("ip -n %s route add default via fd00:1::1", name),
	)
	return p
}

// realConf is a configuration for pod n that publishes 8080.
func realConf(n int) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"portmap",
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
		"ips":[{"interface":0,"address":"10.1.0.%d/16"},{"interface":0,"address":"fd00:1::%d/64"}]},
		"runtimeConfig":{"portMappings":[%s]}}`, n, n, web)
}

// fetch reads the answer of port 8080 of the node, in both families.
func (w *world) fetch() (v4, v6 string) {
	c := w.Lab.Client()
	get := func(host string) string {
		client := c.HTTPClient(2 * time.Second)
		defer client.CloseIdleConnections()
		resp, err := client.Get("http://" + host + ":8080/")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	return get(netlab.IP4(c.Uplink.Node).String()), get("[" + netlab.IP6(c.Uplink.Node).String() + "]")
}

func (w *world) wantAnswer(want string) {
	w.T.Helper()
	v4, v6 := w.fetch()
	if v4 != want || v6 != want {
		w.T.Errorf("client got %q and %q, want %q", v4, v6, want)
	}
}

func (w *world) addReal(id string, n int) {
	w.T.Helper()
	plugintest.Must(w.T, w.In(func() error { _, err := w.Add(id, realConf(n)); return err }))
}

// warm loads the datapath by an attachment that comes and goes, and returns
// what the node then looks like.
func (w *world) warm() netlab.Snapshot {
	w.T.Helper()
	plugintest.Must(w.T, w.In(func() error { return w.Plugin.Status(w.T.Context(), w.Args("", netconf("", ""))) }))
	w.addReal("a", 2)
	plugintest.Must(w.T, w.In(func() error { return w.Del("a") }))
	return w.Snapshot()
}

func TestPrivilegedPublish(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	w.pod("b", 3)
	before := w.warm()

	w.addReal("a", 2)
	w.wantAnswer("a")
	plugintest.Must(t, w.In(func() error { return w.Plugin.Check(t.Context(), w.Args("a", realConf(2))) }))

	w.addReal("b", 3) // takes the port
	w.wantAnswer("b")
	err := w.In(func() error { return w.Plugin.Check(t.Context(), w.Args("a", realConf(2))) })
	w.WantCode(err, cnierr.CodeCheck)

	for range 2 {
		plugintest.Must(t, w.In(func() error { return w.Del("a") }))
	}
	w.wantAnswer("b")
	for range 2 {
		plugintest.Must(t, w.In(func() error { return w.Del("b") }))
	}
	if v4, _ := w.fetch(); v4 == "a" || v4 == "b" {
		t.Errorf("still published: %q", v4)
	}
	if diff := netlab.DiffSoon(before, w.Snapshot); diff != "" {
		t.Errorf("left behind:\n%s", diff)
	}
}

func TestPrivilegedDelOfLostAttachments(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("a", 2)
	w.pod("b", 3)
	before := w.warm()

	w.addReal("a", 2)
	plugintest.Must(t, w.In(func() error { return w.Records.Remove(plugintest.Ref("a"), Name) }))
	plugintest.Must(t, w.In(func() error { return w.Del("a") }))
	if diff := netlab.DiffSoon(before, w.Snapshot); diff != "" {
		t.Errorf("without a record, left behind:\n%s", diff)
	}

	w.addReal("a", 2)
	w.addReal("b", 3)
	plugintest.Must(t, pod.Delete())
	w.RunScripts("ip link del v2") // as a main plugin's GC
	plugintest.Must(t, w.In(func() error {
		return w.Plugin.GC(t.Context(), w.Args("", []byte(`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]}`)))
	}))
	w.wantAnswer("b")
	var left []uint64
	plugintest.Must(t, w.In(func() error {
		dp, err := loader.OpenExisting(t.Context(), loader.Options{})
		if err != nil {
			return err
		}
		defer dp.Close()
		eps, err := dp.Endpoints(t.Context())
		for _, e := range eps {
			left = append(left, e.Owner)
		}
		return err
	}))
	if diff := cmp.Diff([]uint64{plugintest.Owner("b")}, left); diff != "" {
		t.Errorf("owners after GC (-want +got):\n%s", diff)
	}
}

func TestPrivilegedDelNeverLoaded(t *testing.T) {
	w := newWorld(t)
	before := w.Snapshot()
	for range 2 {
		plugintest.Must(t, w.In(func() error { return w.Del("a") }))
	}
	plugintest.Must(t, w.In(func() error {
		_, err := w.Add("a", withPrev("", ""))
		return err
	}))
	if diff := netlab.DiffSoon(before, w.Snapshot); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}

// BenchmarkPrivilegedAdd is the plugin's own work once the datapath is loaded:
// no process start, the main plugin has not enabled anything. DEL is not timed.
func BenchmarkPrivilegedAdd(b *testing.B) {
	w := newWorld(b)
	w.pod("a", 2)
	w.warm()
	for b.Loop() {
		w.addReal("a", 2)
		b.StopTimer()
		plugintest.Must(b, w.In(func() error { return w.Del("a") }))
		b.StartTimer()
	}
}

// BenchmarkPrivilegedDel is the same for DEL.
func BenchmarkPrivilegedDel(b *testing.B) {
	w := newWorld(b)
	w.pod("a", 2)
	w.warm()
	for b.Loop() {
		b.StopTimer()
		w.addReal("a", 2)
		b.StartTimer()
		plugintest.Must(b, w.In(func() error { return w.Del("a") }))
	}
}
