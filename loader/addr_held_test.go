// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// addrsOfPods are the addresses that a test gives to two pods, by family.
func addrsOfPods() map[string]string {
	return map[string]string{"IPv4": "10.1.0.2/16", "IPv6": "2001:db8:1::2/64"}
}

// endpointsOf lists the endpoints without what they count.
func endpointsOf(e *env, d *Datapath) (out []string) {
	e.t.Helper()
	eps, err := d.Endpoints(e.ctx)
	e.ok(err)
	for _, ep := range eps {
		ep.Stats = EndpointCounter{}
		out = append(out, fmt.Sprintf("%+v", ep))
	}
	return out
}

// An address of a pod that lives stays with it: the newcomer gets an error that names the holder, and nothing else.
func TestPrivilegedAddressOfLivingPod(t *testing.T) {
	const all = FeatureMasquerade | FeatureAdmit
	for fam, addr := range addrsOfPods() {
		for _, f := range []Feature{FeatureMasquerade, FeatureAdmit, FeaturePublish, FeatureQueueRx, FeatureQueueTx} {
			t.Run(fmt.Sprint(fam, f), func(t *testing.T) {
				e := newEnv(t)
				d := e.open()
				old, next := e.pod("pod1", addr), e.pod("pod2", addr)
				next.Ref.Network = "other"
				next.Addrs = append([]netip.Prefix{netip.MustParsePrefix("10.9.0.9/16")}, next.Addrs...) // one that is free, too
				e.ok(d.Enable(e.ctx, old, all))
				before := endpointsOf(e, d)
				want := &AddrHeldError{Addr: netip.MustParsePrefix(addr).Addr(), Owner: old.Ref.Owner(), Ifindex: old.HostIfindex, IfName: "pod1"}
				for name, err := range map[string]error{
					"CheckFree": d.CheckFree(e.ctx, next.Ref.Owner(), next.Addrs), "Enable": d.Enable(e.ctx, next, f),
				} {
					var held *AddrHeldError
					if !errors.As(err, &held) || *held != *want {
						t.Errorf("%s: got %v, want %v", name, err, want)
					}
				}
				e.ok(d.CheckEndpoint(e.ctx, old, all))
				if diff := cmp.Diff(before, endpointsOf(e, d)); diff != "" {
					t.Error(diff)
				}
				if got := hooksOf(e, d, next.HostIfindex); got != nil {
					t.Errorf("the newcomer has programs: %v", got)
				}
				// The runtime's DEL of what failed takes nothing from the holder.
				e.ok(d.Disable(e.ctx, next.Ref.Owner(), ^Feature(0), HeldBy(next.Addrs)))
				e.ok(d.CheckEndpoint(e.ctx, old, all))
			})
		}
	}
}

// A pod whose DEL never came and whose device is gone: the next pod with its address takes it over, without its features, and the old
// owner's DEL leaves it alone.
func TestPrivilegedAddressChangesOwner(t *testing.T) {
	for fam, addr := range addrsOfPods() {
		t.Run(fam, func(t *testing.T) {
			e := newEnv(t)
			d := e.open()
			old, next := e.pod("pod1", addr), e.pod("pod2", addr)
			e.ok(d.Enable(e.ctx, old, FeatureMasquerade|FeatureAdmit))
			e.ip("link", "del", "pod1")
			e.ok(d.CheckFree(e.ctx, next.Ref.Owner(), next.Addrs))
			e.ok(d.Enable(e.ctx, next, FeatureMasquerade))
			e.ok(d.CheckEndpoint(e.ctx, next, FeatureMasquerade))
			if err := d.CheckEndpoint(e.ctx, next, FeatureAdmit); !errors.Is(err, ErrDiffers) {
				t.Errorf("the new owner inherited a feature: %v", err)
			}
			e.ok(d.Disable(e.ctx, old.Ref.Owner(), FeatureMasquerade|FeatureAdmit, HeldBy(old.Addrs)))
			e.ok(d.CheckEndpoint(e.ctx, next, FeatureMasquerade))
		})
	}
}

// An attachment keeps its address whatever becomes of its device: a repeated ADD, or one after a DEL that failed, with the old device
// still there.
func TestPrivilegedAddressOfSameAttachment(t *testing.T) {
	for fam, addr := range addrsOfPods() {
		t.Run(fam, func(t *testing.T) {
			e := newEnv(t)
			d := e.open()
			ep, again := e.pod("pod1", addr), e.pod("pod1b", addr)
			again.Ref = ep.Ref
			e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
			e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
			e.ok(d.CheckFree(e.ctx, ep.Ref.Owner(), ep.Addrs))
			e.ok(d.Enable(e.ctx, again, FeatureMasquerade))
			e.ok(d.CheckEndpoint(e.ctx, again, FeatureMasquerade))
			// One device under another name of its network is the same pod.
			renamed := again
			renamed.Ref.Network = "renamed"
			e.ok(d.Enable(e.ctx, renamed, FeatureAdmit))
			e.ok(d.CheckEndpoint(e.ctx, renamed, FeatureAdmit))
		})
	}
}

// Of several ADDs of one address at the same time, one gets it.
func TestPrivilegedAddressParallel(t *testing.T) {
	for fam, addr := range addrsOfPods() {
		t.Run(fam, func(t *testing.T) {
			e := newEnv(t)
			e.open()
			const pods = 6
			eps, errs := make([]Endpoint, pods), make([]error, pods)
			for i := range eps {
				eps[i] = e.pod(fmt.Sprintf("pod%d", i), addr)
			}
			elsewhere := e.elsewhere()
			var wg sync.WaitGroup
			for i, ep := range eps {
				wg.Go(func() {
					errs[i] = elsewhere(func() error {
						d, err := Open(e.ctx, e.o)
						if err != nil {
							return err
						}
						return errors.Join(d.Enable(e.ctx, ep, FeatureMasquerade), d.Close())
					})
				})
			}
			wg.Wait()
			winner := -1
			for i, err := range errs {
				var held *AddrHeldError
				switch {
				case err == nil && winner < 0:
					winner = i
				case err == nil:
					t.Errorf("pods %d and %d have the address", winner, i)
				case !errors.As(err, &held):
					t.Errorf("pod %d: %v", i, err)
				}
			}
			if winner < 0 {
				t.Fatal("no pod got the address")
			}
			e.ok(e.open().CheckEndpoint(e.ctx, eps[winner], FeatureMasquerade))
		})
	}
}
