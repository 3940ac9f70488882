// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// atOnce runs f(0) to f(n-1) at the same time and joins their errors.
func atOnce(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Many ADDs at once on a fresh node, where the first ones load the datapath:
// every pod gets addresses of its own and its hostPort works. Many DELs at once
// leave nothing.
func TestPrivilegedParallelAddAndDel(t *testing.T) {
	pods := netlab.Fewer(40, 16)
	w := e2etest.NewWorld(t) // not parallel: it keeps the machine busy
	rt := w.Runtime(e2etest.Net0())
	all := make([]*e2etest.Pod, pods)
	for i := range all {
		name := fmt.Sprintf("p%d", i)
		all[i] = w.NewPod(rt, name, e2etest.TCP(20000+i, 80), e2etest.UDP(20000+i, 80))
		e2etest.Serve(t, all[i], name, ":80")
	}
	if err := atOnce(pods, func(i int) error { return all[i].TryAdd() }); err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]string{}
	for _, p := range all {
		for _, a := range []netip.Addr{p.IP4, p.IP6} {
			if seen[a] != "" {
				t.Errorf("%s and %s both got %s", seen[a], p.Name, a)
			}
			seen[a] = p.Name
		}
	}
	for i, p := range all {
		for _, fam := range e2etest.Families() {
			for _, proto := range []string{"tcp", "udp"} {
				if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), uint16(20000+i))); got.Server != p.Name {
					t.Errorf("port %d is answered by %s, want %s", 20000+i, got.Server, p.Name)
				}
			}
		}
	}
	if err := atOnce(pods, func(i int) error { return all[i].Check() }); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	// Half of them go while others come.
	extra := make([]*e2etest.Pod, pods/2)
	for i := range extra {
		extra[i] = w.NewPod(rt, fmt.Sprintf("q%d", i), e2etest.TCP(21000+i, 80))
	}
	if err := atOnce(pods, func(i int) error {
		if i%2 == 0 {
			return extra[i/2].TryAdd()
		}
		return all[i].TryDel()
	}); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < pods; i += 2 {
		if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(e2etest.Families()[0].Node(w.Client()), uint16(20000+i))); got.Server != all[i].Name {
			t.Errorf("port %d is answered by %s, want %s", 20000+i, got.Server, all[i].Name)
		}
	}
	rest := append([]*e2etest.Pod(nil), extra...)
	for i := 0; i < pods; i += 2 {
		rest = append(rest, all[i])
	}
	if err := atOnce(len(rest), func(i int) error { return rest[i].TryDel() }); err != nil {
		t.Fatal(err)
	}
	assertNoAttachments(w)
}

// assertNoAttachments looks for what belongs to single attachments: devices,
// addresses in use, records, published ports, endpoints.
func assertNoAttachments(w *e2etest.World) {
	w.T.Helper()
	s := w.Snapshot()
	for _, line := range s.Grep("link veth") {
		w.T.Errorf("left behind: %s", line)
	}
	for _, line := range append(s.Grep("file "+recordDir+"/"), s.Grep("file /run/cni/")...) {
		if name := line[strings.LastIndex(line, "/")+1:]; name != "" && !strings.HasPrefix(name, ".") {
			w.T.Errorf("left behind: %s", line)
		}
	}
	for _, line := range s.Grep("file /var/lib/cni/networks/") {
		if strings.Contains(line, "/.sluice/") {
			continue // the network's own: in which boot its files were made
		}
		if name := line[strings.LastIndex(line, "/")+1:]; name != "" && name != "lock" && !strings.HasPrefix(name, "last_reserved_ip.") {
			w.T.Errorf("left behind: %s", line)
		}
	}
	var ports, endpoints []any
	w.SluiceJSON(w.T, &ports, "hostports")
	w.SluiceJSON(w.T, &endpoints, "endpoints")
	if len(ports)+len(endpoints) != 0 {
		w.T.Errorf("left behind: hostPorts %v, endpoints %v", ports, endpoints)
	}
}

// The same pod again and again: nothing accumulates.
func TestPrivilegedManyGenerations(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	ports := []e2etest.PortMapping{e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)}
	before := w.Warmup(rt, ports...)
	for range 10 {
		p := w.AddPod(rt, "web", ports...)
		if err := p.Check(); err != nil {
			t.Fatalf("CHECK: %v", err)
		}
		p.MustDel()
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	w.AssertNothingLeft(before)
}
