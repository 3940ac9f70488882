// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// What a test run sends has a socket of the calling thread's namespace.
func netnsCookie(t *testing.T) uint64 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

// The rules of a pod hold at the parent of its device for packets that have passed no other program: by MAC or address, and where the
// kernel names the namespace of a socket, by that, whatever the packet says. The packet stays as it is.
func TestPrivilegedParent(t *testing.T) {
	for _, tt := range []struct {
		name   string
		netns  bool
		key    func(k podns.ParentKey, src netip.Addr) podns.ParentKey
		flags  uint32
		forged bool // a MAC and an address that are not the pod's are judged too
	}{
		{name: "MAC", key: func(k podns.ParentKey, _ netip.Addr) podns.ParentKey { return k.WithMAC(podA.mac) }},
		{name: "address", key: func(k podns.ParentKey, src netip.Addr) podns.ParentKey { return k.WithAddr(src) }},
		{name: "namespace", netns: true, forged: true, key: func(k podns.ParentKey, _ netip.Addr) podns.ParentKey { return k }},
		{name: "namespace and MAC", netns: true, forged: true, flags: podns.ParentByMAC, key: func(k podns.ParentKey, _ netip.Addr) podns.ParentKey { return k }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vars := map[string]uint32{}
			if tt.netns {
				require.SocketNetns(t)
				vars["cfg_sk_netns"] = 1
			}
			fx := newFixture(t, vars)
			eachProtocol(t, fx, func(w *walk, family, proto int) {
				const number, loopback = 300, 1
				pol := w.putPolicy(7, policy.ModeOpen, onlyTo("egress", proto, client(family), serverTCP))
				w.put("sl_dev_policy", podns.Key(number), policymap.NewPoliced(podA.owner, 0, 7, pol))
				j := w.plain(family, proto, podA, keptPort)
				whole := podns.ParentKey{Ifindex: loopback}
				if tt.netns {
					whole.Netns = netnsCookie(t)
				}
				key := bpfgen.TypesSlParentKey(tt.key(whole, j.inside.local.Addr()))
				other := bpfgen.TypesSlParentKey(whole.WithMAC(podB.mac))
				w.put("sl_parent_pods", key, &bpfgen.TypesSlParentPod{Owner: podA.owner, Device: number, Flags: tt.flags})
				defer w.remove("sl_parent_pods", key)
				w.put("sl_parent_pods", other, &bpfgen.TypesSlParentPod{Owner: podA.owner})
				defer w.remove("sl_parent_pods", other)
				var run func(what string, f frame, mac []byte, want int32)
				tagged := func(tci uint16) func(frame) []byte {
					return func(f frame) []byte { return withTag(f.bytes(w.tb), 0x8100, tci) }
				}
				raw := func(f frame) []byte { return f.bytes(w.tb) }
				run = func(what string, f frame, mac []byte, want int32) {
					t.Helper()
					f.srcMAC, f.dstMAC = mac, podA.gwMAC
					data, out := raw(f), make([]byte, 2048)
					opts := ebpf.RunOptions{Data: data, DataOut: out}
					got, err := w.parent.Run(&opts)
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if int32(got) != want || !slices.Equal(opts.DataOut, data) {
						t.Errorf("%s: verdict %d, want %d; the frame is %x, was %x", what, int32(got), want, opts.DataOut, data)
					}
				}
				const next = -1
				run("allowed", j.inside.tx("S"), podA.mac, next)
				run("allowed, again", j.inside.tx("S"), podA.mac, next)
				denied := j.inside
				denied.remote = at(pick(family, far4, far6), serverTCP)
				run("denied", denied.tx("S"), podA.mac, shot)
				if tt.name != "address" { // of which a tagged frame has none
					raw = tagged(5 << 13)
					run("denied behind a priority tag", denied.tx("S"), podA.mac, shot)
					raw = tagged(5<<13 | 7)
					run("of another network", denied.tx("S"), podA.mac, next)
					raw = func(f frame) []byte { return f.bytes(w.tb) }
				}
				forged := denied
				forged.local = at(pick(family, far4, far6), forged.local.Port())
				want := int32(next)
				if tt.forged {
					want = shot
				}
				run("forged MAC and address", forged.tx("S"), []byte{2, 0, 0, 0, 0xbe, 0xef}, want)
				want = next
				if tt.forged && tt.flags == 0 {
					want = shot
				}
				if tt.name != "address" {
					run("another device of the pod", denied.tx("S"), podB.mac, want)
				}
				w.remove("sl_parent_pods", key)
				run("of no pod", denied.tx("S"), podA.mac, next)
				w.put("sl_parent_pods", key, &bpfgen.TypesSlParentPod{Owner: podA.owner})
				run("of a pod without rules", denied.tx("S"), podA.mac, next)
			})
		})
	}
}
