// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// checked is a pod's device without addresses.
func checked(ep Endpoint) Endpoint {
	return Endpoint{Ref: ep.Ref, HostIfindex: ep.HostIfindex, HostIfName: ep.HostIfName, MAC: ep.MAC}
}

func macCheckEntries(e *env, d *Datapath) int {
	e.t.Helper()
	set, err := d.tree.MACCheckedDevices()
	e.ok(err)
	return len(set)
}

// A source MAC check comes and goes by itself, beside the features of the same device, and an upgrade takes it along.
func TestPrivilegedMACCheck(t *testing.T) {
	for _, way := range []string{hook.HowClsact, hook.HowTCX} {
		t.Run(way, func(t *testing.T) {
			if way == hook.HowTCX {
				require.TCX(t)
			}
			e := newEnv(t)
			setAttach(&e.o, way)
			d := e.open()
			bare := checked(e.pod("l2", "10.0.0.2/24"))
			full := e.pod("l3", "10.0.0.3/24")
			owner := full.Ref.Owner()
			e.ok(d.Enable(e.ctx, full, FeatureMasquerade))
			for _, ep := range []Endpoint{bare, checked(full), bare} {
				had := macCheckEntries(e, d) == 2
				if err := d.CheckEndpoint(e.ctx, ep, FeatureMACCheck); errors.Is(err, ErrDiffers) == had {
					t.Errorf("CheckEndpoint before Enable: %v", err)
				}
				e.ok(d.Enable(e.ctx, ep, FeatureMACCheck))
				e.ok(d.CheckEndpoint(e.ctx, ep, FeatureMACCheck))
			}
			if got := hooksOf(e, d, bare.HostIfindex); !slices.Equal(got, []string{"mac_check " + way}) {
				t.Errorf("a device without addresses has %v", got)
			}
			if got := len(hooksOf(e, d, full.HostIfindex)); got != 3 {
				t.Errorf("a device with addresses has %v", hooksOf(e, d, full.HostIfindex))
			}
			wantMACCheckFirst(e, d, full.HostIfindex, way)

			e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof // another build
			d = e.open()
			e.wantInForce(d, 2)
			e.ok(d.CheckEndpoint(e.ctx, bare, FeatureMACCheck))

			moved := checked(full)
			moved.MAC = net.HardwareAddr{2, 0, 0, 0, 9, 9}
			e.ok(d.SetMAC(e.ctx, owner, moved.MAC, Held{HostIfindex: moved.HostIfindex}))
			e.ok(d.CheckEndpoint(e.ctx, moved, FeatureMACCheck))
			if err := d.CheckEndpoint(e.ctx, checked(full), FeatureMACCheck); !errors.Is(err, ErrDiffers) {
				t.Errorf("CHECK with the MAC of before: %v", err)
			}

			e.ok(d.Disable(e.ctx, owner, FeatureMACCheck, Held{}))
			if got := hooksOf(e, d, full.HostIfindex); len(got) != 2 || slices.Contains(got, "mac_check "+way) {
				t.Errorf("after Disable the other features have %v", got)
			}
			e.ok(d.Enable(e.ctx, checked(full), FeatureMACCheck))
			e.ok(d.Disable(e.ctx, owner, FeatureMasquerade, Held{}))
			if got := hooksOf(e, d, full.HostIfindex); !slices.Equal(got, []string{"mac_check " + way}) {
				t.Errorf("after the other feature went there are %v", got)
			}

			// GC keeps the check of a device that exists, whosever it is, and forgets one that is gone.
			nobody := func(uint64) bool { return false }
			e.ok(d.GC(e.ctx, nobody))
			if got := macCheckEntries(e, d); got != 2 {
				t.Errorf("GC left %d checks, want 2", got)
			}
			e.ip("link", "del", "l2")
			e.ok(d.GC(e.ctx, nobody))
			if got := macCheckEntries(e, d); got != 1 {
				t.Errorf("GC left %d checks, want 1", got)
			}
			e.ip("link", "del", "l3")
			e.ok(d.Disable(e.ctx, owner, FeatureMACCheck, Held{}))
			e.ok(d.Disable(e.ctx, owner, FeatureMACCheck, Held{}))
			if got := macCheckEntries(e, d); got != 0 {
				t.Errorf("%d checks are left", got)
			}
		})
	}
}

// wantMACCheckFirst wants the check to run before the program that redirects.
func wantMACCheckFirst(e *env, d *Datapath, index int, way string) {
	e.t.Helper()
	if way == hook.HowClsact {
		if hook.MACCheck().Priority() >= hook.FromPod().Priority() {
			e.t.Error("the filter of sl_mac_check does not come first")
		}
		return
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	at, err := a.At(index, hook.MACCheck())
	e.ok(err)
	ids, err := bpfsys.DevicePrograms(index, bpfsys.TCXIngress)
	e.ok(err)
	if len(ids) != 2 || ids[0] != at.ID {
		e.t.Errorf("the chain is %v, want program %d first", ids, at.ID)
	}
}

// A device that has gone gets no check, and nothing of the attempt stays.
func TestPrivilegedMACCheckNoDevice(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	ep := Endpoint{Ref: attachments.ID{Network: "net", ContainerID: "c", IfName: "eth0"}, HostIfindex: 9999, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	if err := d.Enable(e.ctx, ep, FeatureMACCheck); !errors.Is(err, ErrNoDevice) {
		t.Errorf("Enable: %v", err)
	}
	if got := macCheckEntries(e, d); got != 0 {
		t.Errorf("%d checks are left", got)
	}
	ep.MAC = nil
	if err := d.Enable(e.ctx, ep, FeatureMACCheck); err == nil {
		t.Error("Enable without a MAC succeeded")
	}
}
