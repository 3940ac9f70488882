// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

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
	w := newWorld(t) // not parallel: it keeps the machine busy
	rt := w.runtime(net0())
	all := make([]*pod, pods)
	for i := range all {
		name := fmt.Sprintf("p%d", i)
		all[i] = w.newPod(rt, name, tcp(20000+i, 80), udp(20000+i, 80))
		serve(t, all[i], name, ":80")
	}
	if err := atOnce(pods, func(i int) error { return all[i].tryAdd() }); err != nil {
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
		for _, fam := range families() {
			for _, proto := range []string{"tcp", "udp"} {
				if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), uint16(20000+i))); got.name != p.Name {
					t.Errorf("port %d is answered by %s, want %s", 20000+i, got.name, p.Name)
				}
			}
		}
	}
	if err := atOnce(pods, func(i int) error { return all[i].check() }); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	// Half of them go while others come.
	extra := make([]*pod, pods/2)
	for i := range extra {
		extra[i] = w.newPod(rt, fmt.Sprintf("q%d", i), tcp(21000+i, 80))
	}
	if err := atOnce(pods, func(i int) error {
		if i%2 == 0 {
			return extra[i/2].tryAdd()
		}
		return all[i].tryDel()
	}); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < pods; i += 2 {
		if got := ask(t, w.Client(), "tcp", at(families()[0].node(w.Client()), uint16(20000+i))); got.name != all[i].Name {
			t.Errorf("port %d is answered by %s, want %s", 20000+i, got.name, all[i].Name)
		}
	}
	rest := append([]*pod(nil), extra...)
	for i := 0; i < pods; i += 2 {
		rest = append(rest, all[i])
	}
	if err := atOnce(len(rest), func(i int) error { return rest[i].tryDel() }); err != nil {
		t.Fatal(err)
	}
	w.assertNoAttachments()
}

// assertNoAttachments looks for what belongs to single attachments: devices,
// addresses in use, records, published ports, endpoints.
func (w *world) assertNoAttachments() {
	w.t.Helper()
	s := w.snapshot()
	for _, line := range s.Grep("link veth") {
		w.t.Errorf("left behind: %s", line)
	}
	for _, line := range append(s.Grep("file "+recordDir+"/"), s.Grep("file /run/cni/")...) {
		if name := line[strings.LastIndex(line, "/")+1:]; name != "" && !strings.HasPrefix(name, ".") {
			w.t.Errorf("left behind: %s", line)
		}
	}
	for _, line := range s.Grep("file /var/lib/cni/networks/") {
		if strings.Contains(line, "/.sluice/") {
			continue // the network's own: in which boot its files were made
		}
		if name := line[strings.LastIndex(line, "/")+1:]; name != "" && name != "lock" && !strings.HasPrefix(name, "last_reserved_ip.") {
			w.t.Errorf("left behind: %s", line)
		}
	}
	var ports, endpoints []any
	w.tool(w.t, &ports, "hostports")
	w.tool(w.t, &endpoints, "endpoints")
	if len(ports)+len(endpoints) != 0 {
		w.t.Errorf("left behind: hostPorts %v, endpoints %v", ports, endpoints)
	}
}

// The same pod again and again: nothing accumulates.
func TestPrivilegedManyGenerations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	ports := []mapping{tcp(8080, 80), udp(8080, 80)}
	before := w.settled(rt, ports...)
	for range 10 {
		p := w.add(rt, "web", ports...)
		if err := p.check(); err != nil {
			t.Fatalf("CHECK: %v", err)
		}
		p.mustDel()
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	w.assertNothingLeft(before)
}
