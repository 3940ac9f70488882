// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
)

// With the few capabilities of the agent's container, Sluice's programs are known as its own.
func TestPrivilegedHooksWithFewRights(t *testing.T) {
	for _, how := range []string{hook.HowTCX, hook.HowClsact} {
		e := newEnv(t)
		setAttach(&e.o, how)
		e.uplink()
		d := e.open()
		ep := e.pod("pod1", "10.1.0.2/16")
		e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
		e.ok(d.Enable(e.ctx, ep, FeatureMACCheck))
		indices := []int{e.index("eth0"), ep.HostIfindex}
		want, err := d.Hooks(indices)
		e.ok(err)
		restore := dropRights(e)
		got, err := d.Hooks(indices)
		restore()
		e.ok(err)
		programs := 0
		for i, h := range got {
			for j, p := range h.Programs {
				programs++
				if w := want[i].Programs[j]; !p.Ours || p != w {
					t.Errorf("%s, %d %s: %+v, with all rights %+v", how, h.Ifindex, h.Hook, p, w)
				}
			}
		}
		if programs < 5 {
			t.Errorf("%s: %d programs", how, programs)
		}
	}
}

// dropRights leaves the test's thread the capabilities of the agent's container, until restore is called.
func dropRights(e *env) (restore func()) {
	e.t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	e.ok(unix.Capget(&header, &all[0]))
	few := all
	for i := range few {
		few[i].Effective = 0
	}
	for _, c := range []uint{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON} {
		few[c/32].Effective |= 1 << (c % 32)
	}
	e.ok(unix.Capset(&header, &few[0]))
	return func() {
		e.t.Helper()
		e.ok(unix.Capset(&header, &all[0]))
	}
}
