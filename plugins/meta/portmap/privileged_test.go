// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
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

// world is a node with the real datapath and pods on a bridge that a stranger's
// main plugin might have made.
type world struct {
	*node
	lab *lab.Lab
}

func newWorld(t testing.TB) *world {
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
	must(t, w.lab.Node.WriteSysctl("net/ipv6/conf/default/accept_dad", "0")) // link-local addresses at once
	w.ip("link add br0 address 02:00:00:00:00:01 type bridge", "addr add 10.1.0.1/16 dev br0", "addr add fd00:1::1/64 dev br0 nodad", "link set br0 up")
	settle(t, w.lab.Node.NS, w.lab.Client().NS)
	t.Cleanup(func() { _ = w.lab.Node.Do(unload) }) // or its programs live as long as the devices
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

func (w *world) ip(lines ...string) {
	w.t.Helper()
	must(w.t, w.lab.Node.Do(func() error {
		for _, l := range lines {
			if _, err := lab.Run("sh", "-c", "ip "+l); err != nil {
				return err
			}
		}
		return nil
	}))
}

// pod makes a pod with the addresses 10.1.0.<n> and fd00:1::<n> that answers
// HTTP with its name on port 80.
func (w *world) pod(name string, n int) *lab.Pod {
	w.t.Helper()
	p := w.lab.Node.PodT(w.t, name)
	must(w.t, p.WriteSysctl("net/ipv6/conf/default/accept_dad", "0"))
	w.ip(
		fmt.Sprintf("link add v%d type veth peer name eth0 netns %s", n, name),
		fmt.Sprintf("link set v%d master br0 up", n),
		fmt.Sprintf("-n %s link set lo up", name),
		fmt.Sprintf("-n %s addr add 10.1.0.%d/16 dev eth0", name, n),
		fmt.Sprintf("-n %s addr add fd00:1::%d/64 dev eth0 nodad", name, n),
		fmt.Sprintf("-n %s link set eth0 up", name),
		fmt.Sprintf("-n %s route add default via 10.1.0.1", name),
		fmt.Sprintf("-n %s route add default via fd00:1::1", name),
	)
	stop, err := p.ServeHTTP("[::]:80", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, name) }))
	must(w.t, err)
	w.t.Cleanup(func() { _ = stop() })
	return p
}

// in runs f on a thread of the node.
func (w *world) in(f func() error) error { return w.lab.Node.Do(f) }

// realConf is a configuration for pod n that publishes 8080.
func realConf(n int) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"portmap",
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
		"ips":[{"interface":0,"address":"10.1.0.%d/16"},{"interface":0,"address":"fd00:1::%d/64"}]},
		"runtimeConfig":{"portMappings":[%s]}}`, n, n, web)
}

// fetch reads the answer of port 8080 of the node, in both families.
func (w *world) fetch() (v4, v6 string) {
	c := w.lab.Client()
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
	return get(lab.IP4(c.Uplink.Node).String()), get("[" + lab.IP6(c.Uplink.Node).String() + "]")
}

func (w *world) wantAnswer(want string) {
	w.t.Helper()
	v4, v6 := w.fetch()
	if v4 != want || v6 != want {
		w.t.Errorf("client got %q and %q, want %q", v4, v6, want)
	}
}

func (w *world) addReal(id string, n int) {
	w.t.Helper()
	must(w.t, w.in(func() error { _, err := w.add(id, realConf(n)); return err }))
}

// warm loads the datapath by an attachment that comes and goes, and returns
// what the node then looks like.
func (w *world) warm() lab.Snapshot {
	w.t.Helper()
	must(w.t, w.in(func() error { return w.plugin.Status(w.t.Context(), w.args("", netconf("", ""))) }))
	w.addReal("a", 2)
	must(w.t, w.in(func() error { return w.del("a") }))
	return w.snapshot()
}

func (w *world) snapshot() lab.Snapshot {
	w.t.Helper()
	s, err := w.lab.Node.Snapshot()
	must(w.t, err)
	return s
}

func TestPrivilegedPublish(t *testing.T) {
	w := newWorld(t)
	w.pod("a", 2)
	w.pod("b", 3)
	before := w.warm()

	w.addReal("a", 2)
	w.wantAnswer("a")
	must(t, w.in(func() error { return w.plugin.Check(t.Context(), w.args("a", realConf(2))) }))

	w.addReal("b", 3) // takes the port
	w.wantAnswer("b")
	err := w.in(func() error { return w.plugin.Check(t.Context(), w.args("a", realConf(2))) })
	w.wantCode(err, cnierr.CodeCheck)

	for range 2 {
		must(t, w.in(func() error { return w.del("a") }))
	}
	w.wantAnswer("b")
	for range 2 {
		must(t, w.in(func() error { return w.del("b") }))
	}
	if v4, _ := w.fetch(); v4 == "a" || v4 == "b" {
		t.Errorf("still published: %q", v4)
	}
	if diff := lab.Diff(before, w.snapshot()); diff != "" {
		t.Errorf("left behind:\n%s", diff)
	}
}

func TestPrivilegedDelOfLostAttachments(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("a", 2)
	w.pod("b", 3)
	before := w.warm()

	w.addReal("a", 2)
	must(t, w.in(func() error { return w.records.Remove(refNamed("a"), Name) }))
	must(t, w.in(func() error { return w.del("a") }))
	if diff := lab.Diff(before, w.snapshot()); diff != "" {
		t.Errorf("without a record, left behind:\n%s", diff)
	}

	w.addReal("a", 2)
	w.addReal("b", 3)
	must(t, pod.Delete())
	w.ip("link del v2") // as a main plugin's GC
	must(t, w.in(func() error {
		return w.plugin.GC(t.Context(), w.args("", []byte(`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]}`)))
	}))
	w.wantAnswer("b")
	var left []uint64
	must(t, w.in(func() error {
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
	if diff := cmp.Diff([]uint64{owner("b")}, left); diff != "" {
		t.Errorf("owners after GC (-want +got):\n%s", diff)
	}
}

func TestPrivilegedDelNeverLoaded(t *testing.T) {
	w := newWorld(t)
	before := w.snapshot()
	for range 2 {
		must(t, w.in(func() error { return w.del("a") }))
	}
	must(t, w.in(func() error {
		_, err := w.add("a", withPrev("", ""))
		return err
	}))
	if diff := lab.Diff(before, w.snapshot()); diff != "" {
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
		must(b, w.in(func() error { return w.del("a") }))
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
		must(b, w.in(func() error { return w.del("a") }))
	}
}
