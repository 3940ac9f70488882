// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"testing"
)

// An address that another attachment has taken over comes back with all its features when that one goes, unless its own has gone
// meanwhile, or its device.
func TestPrivilegedAddressComesBack(t *testing.T) {
	const all = FeatureMasquerade | FeatureAdmit
	for name, leave := range map[string]func(e *env, d *Datapath, old, next Endpoint) error{
		"DEL": func(e *env, d *Datapath, _, next Endpoint) error {
			return d.Disable(e.ctx, next.Ref.Owner(), FeatureMasquerade)
		},
		"GC": func(e *env, d *Datapath, old, next Endpoint) error {
			if err := d.GC(e.ctx, func(uint64) bool { return true }); err != nil { // spares who has been displaced
				return err
			}
			return d.GC(e.ctx, func(owner uint64) bool { return owner == old.Ref.Owner() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			d := e.open()
			old, next := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.2/16")
			e.ok(d.Enable(e.ctx, old, FeatureMasquerade))
			e.ok(d.Enable(e.ctx, old, FeatureAdmit))
			e.ok(d.Enable(e.ctx, next, FeatureMasquerade))
			e.ok(leave(e, d, old, next))
			e.ok(d.CheckEndpoint(e.ctx, old, all))
			if exists(d.paths.displaced) {
				t.Error("the file of who has been displaced is left")
			}
		})
	}
	t.Run("gone meanwhile", func(t *testing.T) {
		e := newEnv(t)
		d := e.open()
		old, next := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.2/16")
		e.ok(d.Enable(e.ctx, old, all))
		e.ok(d.Enable(e.ctx, next, FeatureMasquerade))
		e.ok(d.Disable(e.ctx, old.Ref.Owner(), all))
		e.ok(d.CheckEndpoint(e.ctx, next, FeatureMasquerade))
		e.ok(d.Disable(e.ctx, next.Ref.Owner(), FeatureMasquerade))
		if eps, err := d.Endpoints(e.ctx); err != nil || len(eps) != 0 || exists(d.paths.displaced) {
			t.Errorf("left: %+v %v", eps, err)
		}
	})
	t.Run("device gone", func(t *testing.T) {
		e := newEnv(t)
		d := e.open()
		old, next := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.2/16")
		e.ok(d.Enable(e.ctx, old, all))
		e.ok(d.Enable(e.ctx, next, FeatureMasquerade))
		e.ip("link", "del", "pod1")
		e.ok(d.Disable(e.ctx, next.Ref.Owner(), FeatureMasquerade))
		if eps, err := d.Endpoints(e.ctx); err != nil || len(eps) != 0 || exists(d.paths.displaced) {
			t.Errorf("left: %+v %v", eps, err)
		}
	})
	t.Run("back by its next ADD", func(t *testing.T) {
		e := newEnv(t)
		d := e.open()
		old, next := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.2/16")
		e.ok(d.Enable(e.ctx, old, FeatureMasquerade))
		e.ok(d.Enable(e.ctx, next, FeatureMasquerade))
		e.ok(d.Enable(e.ctx, old, FeatureAdmit))
		e.ok(d.CheckEndpoint(e.ctx, old, all))
		e.ok(d.Disable(e.ctx, old.Ref.Owner(), all))
		e.ok(d.CheckEndpoint(e.ctx, next, FeatureMasquerade))
	})
	t.Run("a file that is no list", func(t *testing.T) {
		e := newEnv(t)
		d := e.open()
		e.ok(os.WriteFile(d.paths.displaced, []byte("[{"), 0o644))
		old := e.pod("pod1", "10.1.0.2/16")
		e.ok(d.Enable(e.ctx, old, all))
		e.ok(d.Disable(e.ctx, old.Ref.Owner(), all))
		if err := d.CheckEndpoint(e.ctx, old, all); !errors.Is(err, ErrDiffers) {
			t.Errorf("got %v", err)
		}
	})
}
