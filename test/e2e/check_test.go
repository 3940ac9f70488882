// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/containernetworking/cni/pkg/types"
)

const pinRoot = "/sys/fs/bpf/sluice"

// pins returns the pinned objects whose path contains text.
func pins(text string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(pinRoot, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, text) {
			found = append(found, path)
		}
		return err
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("nothing is pinned under %s with %q in its path", pinRoot, text)
	}
	return found, err
}

// onNode runs f inside the node and ends the test on an error.
func (w *world) onNode(f func() error) {
	w.t.Helper()
	if err := w.Node.Do(f); err != nil {
		w.t.Fatal(err)
	}
}

// removePins takes pinned objects away.
func removePins(w *world, text string) {
	w.t.Helper()
	w.onNode(func() error {
		found, err := pins(text)
		for _, path := range found {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	})
}

// emptyMap deletes every entry of a pinned hash map.
func emptyMap(w *world, name string) {
	w.t.Helper()
	w.onNode(func() error {
		path, err := pinnedMap(name)
		if err != nil {
			return err
		}
		return emptyPinned(path)
	})
}

// pinnedMap is where a map is pinned on the node of the calling thread.
func pinnedMap(name string) (string, error) {
	found, err := pins("/maps/")
	if err != nil {
		return "", err
	}
	for _, path := range found {
		if filepath.Base(path) == name {
			return path, nil
		}
	}
	return "", fmt.Errorf("no map %s among %v", name, found)
}

func emptyPinned(path string) error {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	key := make([]byte, m.KeySize())
	for n := 0; ; n++ {
		if err := m.NextKey(nil, &key); errors.Is(err, ebpf.ErrKeyNotExist) {
			if n == 0 {
				return fmt.Errorf("%s was empty", path)
			}
			return nil
		} else if err != nil {
			return err
		}
		if err := m.Delete(key); err != nil {
			return err
		}
	}
}

// CHECK finds each thing that is missing or changed, with an error that is one.
func TestPrivilegedCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, w *world, p *pod)
	}{
		{"address of the pod", func(t *testing.T, w *world, p *pod) { sh(t, p, "ip addr del "+p.IP4.String()+"/16 dev eth0") }},
		{"IPv6 address of the pod", func(t *testing.T, w *world, p *pod) { sh(t, p, "ip addr del "+p.IP6.String()+"/64 dev eth0") }},
		{"default route", func(t *testing.T, w *world, p *pod) { sh(t, p, "ip route del default") }},
		{"device of the pod", func(t *testing.T, w *world, p *pod) { sh(t, p, "ip link del eth0") }},
		{"bridge port", func(t *testing.T, w *world, p *pod) { sh(t, w.Node, "ip link set "+p.hostEnd()+" nomaster") }},
		{"bridge", func(t *testing.T, w *world, p *pod) { sh(t, w.Node, "ip link del cni0") }},
		{"MAC of the pod", func(t *testing.T, w *world, p *pod) { sh(t, p, "ip link set eth0 address 02:00:00:00:00:99") }},
		{"sysctl of tuning", func(t *testing.T, w *world, p *pod) {
			if err := p.WriteSysctl("net/core/somaxconn", "77"); err != nil {
				t.Fatal(err)
			}
		}},
		{"allocation of the address", func(t *testing.T, w *world, p *pod) {
			sh(t, w.Node, "rm /var/lib/cni/networks/net0/"+p.IP4.String()+" /var/lib/cni/networks/net0/"+p.IP6.String())
		}},
		{"published ports", func(_ *testing.T, w *world, _ *pod) { emptyMap(w, "sl_hostports") }},
		{"endpoint", func(_ *testing.T, w *world, _ *pod) { emptyMap(w, "sl_endpoints") }},
		{"node addresses", func(_ *testing.T, w *world, _ *pod) { emptyMap(w, "sl_node_addrs") }},
		{"attached programs", func(_ *testing.T, w *world, _ *pod) { removePins(w, "/links/") }},
		{"pinned programs", func(_ *testing.T, w *world, _ *pod) { removePins(w, "/progs/") }},
		{"everything pinned", func(_ *testing.T, w *world, _ *pod) { removePins(w, "") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.add(w.runtime(fullChain()), "web", somePorts()...)
			if err := p.check(); err != nil {
				t.Fatalf("CHECK finds fault with what ADD made: %v", err)
			}
			tt.spoil(t, w, p)
			err := p.check()
			if err == nil {
				t.Fatal("CHECK finds nothing")
			}
			var cniErr *types.Error
			if !errors.As(err, &cniErr) {
				t.Fatalf("CHECK fails with %T, want a CNI error: %v", err, err)
			}
			if cniErr.Code == types.ErrInternal || cniErr.Code == 0 || cniErr.Msg == "" {
				t.Errorf("CHECK says code %d, %q", cniErr.Code, cniErr.Msg)
			}
			t.Logf("code %d: %s", cniErr.Code, cniErr.Msg)
			// However bad it looks, DEL cleans up.
			if err := p.tryDel(); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

// CHECK does not mind what others have added.
func TestPrivilegedCheckToleratesOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(w.runtime(fullChain()), "web", somePorts()...)
	sh(t, p, "ip addr add 10.77.0.1/24 dev eth0")
	sh(t, p, "ip route add 10.78.0.0/24 dev eth0")
	sh(t, w.Node, "tc qdisc replace dev eth0 root pfifo limit 500")
	sh(t, w.Node, "ip link add stranger type veth")
	if err := p.check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

// A device that comes later carries pod traffic too, once a verb has run.
func TestPrivilegedNewUplink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	serve(t, w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), "web", ":80")
	app := w.add(rt, "app")
	c := &late{w: w}
	c.join(t)
	sh(t, w.Node, programs.Path("sluice")+" resync")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		addr := map[string]string{"4": "203.0.113.1:8080", "6": "[2001:db8:3::1]:8080"}[fam.suffix]
		if got := ask(t, c.ns, proto, addr); got.name != "web" {
			t.Errorf("answered by %s", got.name)
		}
		peer := map[string]string{"4": "203.0.113.2:9000", "6": "[2001:db8:3::2]:9000"}[fam.suffix]
		want := map[string]string{"4": "203.0.113.1", "6": "2001:db8:3::1"}[fam.suffix]
		if got := ask(t, app, proto, peer); got.peer.Addr().String() != want {
			t.Errorf("the new client saw %s, want %s", got.peer, want)
		}
	})
}
