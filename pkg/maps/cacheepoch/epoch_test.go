// SPDX-License-Identifier: Apache-2.0

package cacheepoch_test

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

// Whatever is changed in the maps that the programs remember things of begins another epoch, each time another one.
func TestPrivilegedEveryChange(t *testing.T) {
	t.Parallel()
	newMap := func(kind ebpf.MapType, key, value uint32) *ebpf.Map {
		m := bpftest.NewMap(t, &ebpf.MapSpec{Name: "sl_test", Type: kind, KeySize: key, ValueSize: value, MaxEntries: 1})
		return m
	}
	raw := newMap(ebpf.Array, 4, 8)
	e := cacheepoch.New(bpftest.View(t, raw))
	pods := endpoint.New(bpftest.View(t, newMap(ebpf.Hash, 16, 64)), e)
	ports := hostport.New(bpftest.View(t, newMap(ebpf.Hash, 20, 88)), e)
	pod, key := netip.MustParseAddr("10.1.0.2"), hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: 6, Port: 80}
	seen := map[uint64]bool{0: true}
	for name, change := range map[string]func() error{
		"a pod comes":  func() error { return pods.Put(pod, &endpoint.Value{}) },
		"a pod goes":   func() error { return pods.Delete(pod) },
		"a port comes": func() error { return ports.Put(hostport.Entry{Mapping: hostport.Mapping{Key: key, PodIP: pod}}) },
		"a port goes":  func() error { return ports.Delete(key) },
	} {
		for range 100 {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			var now uint64
			if err := raw.Lookup(uint32(0), &now); err != nil {
				t.Fatal(err)
			}
			if seen[now] {
				t.Fatalf("%s: epoch %d has been before", name, now)
			}
			seen[now] = true
		}
	}
}
