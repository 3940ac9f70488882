// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const testRotation = 720 * time.Hour

// A key is active for one period and exchanged in the middle of the next one, whatever the times of the Syncs are.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	start := periodStart(baseTime, testRotation)
	k := &keyPair{}
	for i := range k.Keys {
		k.Keys[i].Made = start
	}
	if k.staleKey(start, testRotation) || k.staleKey(start.Add(testRotation-1), testRotation) {
		t.Error("a key of this period is stale")
	}
	for n := 1; n < 7; n++ {
		now := start.Add(time.Duration(n) * testRotation)
		idle := 1 - activeLane(now, testRotation)
		if activeLane(now, testRotation) == activeLane(now.Add(-1), testRotation) {
			t.Errorf("period %d: the active lane stays", n)
		}
		if k.staleKey(now, testRotation) || k.staleKey(now.Add(testRotation/2-1), testRotation) {
			t.Errorf("period %d: stale in the first half", n)
		}
		middle := now.Add(testRotation / 2)
		if !k.staleKey(middle, testRotation) || nextStep(now, testRotation) != testRotation/2 || nextStep(middle, testRotation) != testRotation/2 {
			t.Errorf("period %d: not stale in the middle, or not in time", n)
		}
		k.Keys[idle].Made = middle
		if k.staleKey(now.Add(testRotation-1), testRotation) {
			t.Errorf("period %d: the new key is stale", n)
		}
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, keyFile)
	made, err := loadKeys(dir, baseTime)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, filepath.Dir(path)} {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", p, st.Mode(), err)
		}
	}
	again, err := loadKeys(dir, baseTime.Add(time.Hour))
	if err != nil || again.Keys[0].key != made.Keys[0].key || again.Keys[1].key != made.Keys[1].key || !again.Keys[0].Made.Equal(baseTime) || made.Keys[0].key == made.Keys[1].key {
		t.Errorf("%v, want the keys of before", err)
	}
	public, err := made.annotation(51820)
	if err != nil {
		t.Fatal(err)
	}
	read, err := readKeys(Node{Annotations: map[string]string{AnnotationWireGuard: public}})
	if err != nil || read.keys[0] != made.Keys[0].public || read.keys[1] != made.Keys[1].public || read.port != 51820 {
		t.Errorf("%s is read as %v: %v", public, read, err)
	}
	for _, k := range made.Keys {
		if strings.Contains(public, k.Private) {
			t.Error("the annotation holds a private key")
		}
	}

	secret := made.Keys[0].Private
	for name, spoil := range map[string]func() error{
		"readable by others": func() error { return os.Chmod(path, 0o640) },
		"no JSON":            func() error { return os.WriteFile(path, []byte(`{"Keys":[{"Private":"`+secret), 0o600) },
		"half a key":         func() error { return os.WriteFile(path, []byte(`{"Keys":[{"Private":"`+secret[:20]+`"}]}`), 0o600) },
		"empty":              func() error { return os.WriteFile(path, nil, 0o600) },
		"a link": func() error {
			return errors.Join(os.Remove(path), made.save(t.TempDir()), os.Symlink(filepath.Join(dir, "x"), path))
		},
	} {
		if err := made.save(dir); err != nil {
			t.Fatal(err)
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := loadKeys(dir, baseTime); err == nil || strings.Contains(err.Error(), secret[:10]) {
			t.Errorf("%s: %v, want an error without the key", name, err)
		}
		_ = os.Remove(path)
	}
	if err := removeKeys(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

func FuzzReadKeys(f *testing.F) {
	f.Add(`{"keys":["AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="],"port":51820}`)
	f.Fuzz(func(t *testing.T, s string) {
		p, err := readKeys(Node{Annotations: map[string]string{AnnotationWireGuard: s}})
		if err == nil && (p.port < 1 || p.port > 65534 || p.keys[0] == wgtypes.Key{} || p.keys[1] == wgtypes.Key{}) {
			t.Fatalf("%v", p)
		}
	})
}

// wgState is what a node's WireGuard device has, without what changes by itself.
func wgState(t testing.TB, node *netlab.Node, device string) *wgtypes.Device {
	t.Helper()
	var d *wgtypes.Device
	if err := node.Do(func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer c.Close()
		d, err = c.Device(device)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return d
}

// syncAll runs all routers with what the nodes say, and takes what they say next.
func syncAll(t *testing.T, nodes []Node, rigs []*rig) {
	t.Helper()
	for i, g := range rigs {
		w, err := g.sync(nodes[i], slices.Delete(slices.Clone(nodes), i, i+1)...)
		if err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
		nodes[i].Annotations = applied(nodes[i].Annotations, w)
	}
}

// shakeHands runs the routers until all nodes have seen each other on both devices.
func shakeHands(t *testing.T, nodes []Node, rigs []*rig) {
	t.Helper()
	for deadline := time.Now().Add(netlab.Patient(20 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		syncAll(t, nodes, rigs)
		missing := 0
		for _, g := range rigs {
			for _, dev := range []string{"sluice-wg", "sluice-wg1"} {
				d := wgState(t, g.node, dev)
				missing += len(rigs) - 1 - len(d.Peers)
				for _, p := range d.Peers {
					if p.LastHandshakeTime.IsZero() || p.PersistentKeepaliveInterval != 0 {
						missing++
					}
				}
			}
		}
		if missing == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d peers have no handshake", missing)
		}
	}
}

func TestPrivilegedWireGuard(t *testing.T) {
	t.Parallel()
	require.Link(t, "wireguard")
	rigs, nodes := newCluster(t, ModeWireGuard)
	shakeHands(t, nodes, rigs)
	g, self := rigs[0], nodes[0]
	assertReach(t, g.node, self, rigs[1].node, nodes[1])
	assertReach(t, rigs[2].node, nodes[2], g.node, self)
	if sent := wgState(t, g.node, "sluice-wg").Peers[0].TransmitBytes + wgState(t, g.node, "sluice-wg1").Peers[0].TransmitBytes; sent < 8000 {
		t.Errorf("%d bytes through WireGuard, want the packets of the pods", sent)
	}
	for _, p := range wgState(t, g.node, "sluice-wg").Peers {
		if len(p.AllowedIPs) != 2 {
			t.Errorf("allowed %v, want the two pod CIDRs", p.AllowedIPs)
		}
	}
	if link := g.node.IPT(t, "link show dev sluice-wg"); !strings.Contains(link, "mtu 1420") || !strings.Contains(link, "alias sluice-agent wireguard") || g.r.MTU(1500) != 1420 {
		t.Error(link)
	}

	g.assertSettled(self, nodes[1:]...)
	t.Run("bad annotations", func(t *testing.T) {
		for name, tc := range map[string]struct{ value, want string }{
			"the victim's keys": {nodes[1].Annotations[AnnotationWireGuard], "another node has the key"},
			"this node's keys":  {self.Annotations[AnnotationWireGuard], "this node has that key"},
			"none":              {"", "missing"},
			"no JSON":           {"{", "not {"},
			"one key":           {`{"keys":["AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="],"port":1}`, "not {"},
			"one key twice":     {`{"keys":["AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="],"port":1}`, "both keys are one"},
			"a zero key":        {`{"keys":["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="],"port":1}`, "not {"},
			"no port":           {strings.Replace(nodes[2].Annotations[AnnotationWireGuard], "51820", "65535", 1), "not {"},
		} {
			evil := nodes[2]
			evil.Name, evil.Created = "evil", baseTime // the older one
			evil.Annotations = map[string]string{AnnotationWireGuard: tc.value}
			_, err := g.sync(self, nodes[1], evil)
			bad, rest := NodeErrors(err)
			if len(bad) != 1 || rest != nil || bad[0].Node != "evil" || !strings.Contains(bad[0].Reason, tc.want) {
				t.Errorf("%s: %v, want %q of node evil", name, err, tc.want)
			}
			if d := wgState(t, g.node, "sluice-wg"); len(d.Peers) != 1 || !strings.Contains(nodes[1].Annotations[AnnotationWireGuard], d.Peers[0].PublicKey.String()) || len(d.Peers[0].AllowedIPs) != 2 {
				t.Errorf("%s: peers %+v, want node1's", name, d.Peers)
			}
		}
		syncAll(t, nodes, rigs)
	})
	t.Run("node goes", func(t *testing.T) {
		g.mustSync(self, nodes[2])
		if d := wgState(t, g.node, "sluice-wg"); len(d.Peers) != 1 || !strings.Contains(nodes[2].Annotations[AnnotationWireGuard], d.Peers[0].PublicKey.String()) {
			t.Errorf("peers %+v, want node2's", d.Peers)
		}
		if routes := ours(t, g.node); len(routes) != 2 {
			t.Errorf("routes %q, want node2's", routes)
		}
		g.mustSync(self, nodes[1:]...)
	})
	t.Run("a device of a third party", func(t *testing.T) {
		g.node.IPT(t, "link add other-wg type wireguard")
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		if err := g.node.Do(func() error {
			c, err := wgctrl.New()
			if err != nil {
				return err
			}
			defer c.Close()
			return c.ConfigureDevice("other-wg", wgtypes.Config{PrivateKey: &key})
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := newRig(t, g.node, ModeWireGuard, Config{WireGuard: WireGuard{Device: "other-wg", Port: 1}}).sync(self); err == nil || !strings.Contains(err.Error(), "not Sluice's") {
			t.Errorf("%v", err)
		}
	})
	t.Run("mode changes", func(t *testing.T) {
		w := newRig(t, g.node, ModeHostGW, Config{StateDir: g.cfg.StateDir}).mustSync(self, nodes[1:]...)
		assertRoutes(t, g.node, to1v4, to2v4, to1v6, to2v6)
		if links := g.node.IPT(t, "link show"); strings.Contains(links, "sluice-wg") || !strings.Contains(links, "other-wg") {
			t.Error(links)
		}
		if got := applied(self.Annotations, w); !maps.Equal(got, map[string]string{AnnotationMode: ModeHostGW}) {
			t.Errorf("annotations %v", got)
		}
		if _, err := os.Stat(filepath.Join(g.cfg.StateDir, keyFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the keys are left: %v", err)
		}
	})
	t.Run("remove", func(t *testing.T) {
		rigs[1].remove()
		rigs[1].remove()
		assertRoutes(t, rigs[1].node)
		if links := rigs[1].node.IPT(t, "link show"); strings.Contains(links, "sluice-wg") {
			t.Error(links)
		}
	})
}

// A datagram is on its way at any moment while both nodes exchange all their keys. Not one is lost.
func TestPrivilegedWireGuardRotation(t *testing.T) {
	t.Parallel()
	require.Link(t, "wireguard")
	c := netlab.NewClusterT(t, 2)
	now := periodStart(baseTime, testRotation)
	var rigs []*rig
	for i, n := range c.Nodes {
		podAddrs(t, n, nodeFacts(i))
		g := newRig(t, n, ModeWireGuard, Config{})
		g.r.(router).mode.(*wireGuard).now = func() time.Time { return now.Add(time.Duration(i) * time.Minute) } // clocks differ
		rigs = append(rigs, g)
	}
	nodes := join(t, rigs...)
	shakeHands(t, nodes, rigs)

	var sent [4]atomic.Int64
	var lost atomic.Int64
	stop, done := make(chan struct{}), make(chan error, 4)
	for i := range rigs {
		for f, p := range nodes[i].PodCIDRs {
			addr := netip.AddrPortFrom(podAddr(p), 7000).String()
			end, err := rigs[i].node.ServeUDP(addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = end() })
			source := firstCIDR(nodes[1-i], p.Addr().Is4())
			conn, err := rigs[1-i].node.DialFrom(context.Background(), "udp", netip.AddrPortFrom(podAddr(source), 0).String(), addr)
			if err != nil {
				t.Fatal(err)
			}
			go func() { done <- pingPong(conn, stop, &sent[2*i+f], &lost) }()
		}
	}
	// All four conversations go on: WireGuard would keep their packets for 5 s, until it tries a handshake again.
	flows := func(when string) {
		t.Helper()
		var before [4]int64
		for i := range sent {
			before[i] = sent[i].Load()
		}
		start := time.Now()
		for i := range sent {
			for sent[i].Load() < before[i]+5 {
				if time.Since(start) > 2*time.Second {
					t.Fatalf("%s: conversation %d stands still", when, i)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	seen := map[string]bool{}
	for step := range 6 { // three periods
		for i := range nodes {
			seen[nodes[i].Annotations[AnnotationWireGuard]] = true
		}
		now = now.Add(testRotation/2 + time.Minute)
		if step%2 == 1 {
			now = now.Add(-2 * time.Minute)
		}
		for range 3 {
			for i, g := range rigs { // the other node does not know yet what this one has done
				w := g.mustSync(nodes[i], nodes[1-i])
				nodes[i].Annotations = applied(nodes[i].Annotations, w)
				flows(fmt.Sprintf("step %d, after the Sync of node %d", step, i))
			}
		}
		shakeHands(t, nodes, rigs)
	}
	close(stop)
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	all := sent[0].Load() + sent[1].Load() + sent[2].Load() + sent[3].Load()
	t.Logf("%d datagrams there and back, %d lost, %d announcements of keys", all, lost.Load(), len(seen))
	if len(seen) < 6 {
		t.Errorf("%d different announcements, want new keys of both nodes", len(seen))
	}
	if lost.Load() > 0 || all < 200 {
		t.Errorf("%d of %d datagrams are lost", lost.Load(), all)
	}
}

// pingPong sends datagrams to a ServeUDP and counts those that do not come back.
func pingPong(c net.Conn, stop <-chan struct{}, sent, lost *atomic.Int64) error {
	defer c.Close()
	buf := make([]byte, 1500)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := c.SetDeadline(time.Now().Add(netlab.Patient(2 * time.Second))); err != nil {
			return err
		}
		word := fmt.Sprintf("word-%d", i)
		if _, err := c.Write([]byte(word)); err != nil {
			return err
		}
		sent.Add(1)
		for {
			n, err := c.Read(buf)
			if err != nil {
				lost.Add(1)
				break
			}
			if strings.HasSuffix(string(buf[:n]), word) {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// An older node that copies the annotation of a younger one does not become the peer, and the younger one stays.
func TestWireGuardPeers(t *testing.T) {
	t.Parallel()
	keysOf := func() string {
		var pair keyPair
		for i := range pair.Keys {
			k, err := newKey(baseTime)
			if err != nil {
				t.Fatal(err)
			}
			pair.Keys[i] = k
		}
		s, err := pair.annotation(51820)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	node := func(i int, age time.Duration, keys string) Node {
		n := nodeFacts(i)
		n.Created, n.Annotations = baseTime.Add(age), map[string]string{AnnotationWireGuard: keys}
		return n
	}
	self, victim := nodeFacts(0), node(1, time.Hour, keysOf())
	evil := node(2, 0, victim.Annotations[AnnotationWireGuard])
	peersOf := func(r *wireGuard, have known, nodes ...Node) (names []string, errs []error) {
		peers, errs := r.plan(&table{}, self, nodes, have)
		for _, p := range peers {
			names = append(names, p.node.Name)
		}
		return names, errs
	}
	router := func() *wireGuard {
		keys, err := loadKeys(t.TempDir(), baseTime)
		if err != nil {
			t.Fatal(err)
		}
		return &wireGuard{keys: keys}
	}
	stolen := func(what string, names []string, errs []error) {
		t.Helper()
		if !slices.Equal(names, []string{"node1"}) || len(errs) != 1 || !strings.Contains(errs[0].Error(), "node node2: annotation sluice-cni.io/wireguard: another node has the key") {
			t.Errorf("%s: peers %v, %v, want the victim only", what, names, errs)
		}
	}

	r := router()
	if names, errs := peersOf(r, known{}, victim); len(names) != 1 || len(errs) > 0 {
		t.Fatalf("%v, %v", names, errs)
	}
	names, errs := peersOf(r, known{}, evil, victim)
	stolen("known from the last Sync", names, errs)

	keys, err := readKeys(victim)
	if err != nil {
		t.Fatal(err)
	}
	have := known{{keys.keys[0]: {AllowedIPs: []net.IPNet{netOf(victim.PodCIDRs[0])}}}, {keys.keys[1]: {AllowedIPs: []net.IPNet{netOf(victim.PodCIDRs[1])}}}}
	names, errs = peersOf(router(), have, evil, victim)
	stolen("known from the kernel", names, errs)

	// The keys of one lane only, and its own in the other one.
	half := node(2, 0, keysOf())
	other, err := readKeys(half)
	if err != nil {
		t.Fatal(err)
	}
	half.Annotations[AnnotationWireGuard] = fmt.Sprintf(`{"keys":[%q,%q],"port":51820}`, other.keys[0], keys.keys[0]) // of another lane too
	names, errs = peersOf(router(), have, half, victim)
	stolen("one key, in the other lane", names, errs)

	own := router()
	value, err := own.keys.annotation(1)
	if err != nil {
		t.Fatal(err)
	}
	if names, errs := peersOf(own, known{}, node(1, 0, value)); len(names) > 0 || len(errs) != 1 || !strings.Contains(errs[0].Error(), "this node has that key") {
		t.Errorf("own keys: %v, %v", names, errs)
	}
}
