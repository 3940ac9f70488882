// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// CHECK between the swap of binaries and the first ADD is about the datapath that is loaded: what the earlier build did not have is not
// missing. What both have is.
func TestPrivilegedCheckBeforeUpgrade(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	inside, _ := e.insider("pod2", "192.0.2.20/24")
	inside.Policy = &policy.Policy{Mode: policy.ModeOpen, DenyEgress: true}
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit|FeaturePublish))
	e.ok(d.Enable(e.ctx, inside, FeatureAdmit))
	check := func() error {
		return errors.Join(d.CheckEndpoint(e.ctx, ep, FeatureAdmit|FeaturePublish), d.CheckEndpoint(e.ctx, inside, FeatureAdmit))
	}
	e.ok(check())
	e.dropTracking(d) // as earlier builds left it
	for _, name := range pintree.LaterMaps() {
		e.ok(os.RemoveAll(d.tree.Paths.MapPin(name)))
	}
	id, _ := d.tree.Paths.Committed()
	e.ok(d.Close())
	e.ok(os.Remove(filepath.Join(d.tree.Paths.BuildDir(id), hook.MACCheck().Program)))
	reopen := func() {
		var err error
		d, err = OpenExisting(e.ctx, e.o)
		e.ok(err)
		t.Cleanup(func() { _ = d.Close() })
	}
	reopen()
	if err := check(); !errors.Is(err, ErrDiffers) {
		t.Errorf("pins of this build are missing: %v", err)
	}
	other := d.tree.Paths.BuildDir("0123456789abcdef")
	e.ok(os.Rename(d.tree.Paths.BuildDir(id), other))
	reopen()
	e.ok(check())
	e.ok(os.Remove(filepath.Join(other, hook.ToUplink().Program)))
	if err := check(); !errors.Is(err, ErrDiffers) {
		t.Errorf("a program of every build is missing: %v", err)
	}
}
