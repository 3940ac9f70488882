// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// atParent says that the limit is the policer of a device without a host veth.
func (s RateLimit) atParent() bool { return s.Police && s.Netns != "" }

// guardLimit has the program on the parent device apply limit number. The error wraps ErrNoDevice when there is none that could.
func (d *Datapath) guardLimit(a *attach.Attacher, s RateLimit, number uint32, back *rollback.Stack) error {
	ns, err := netns.Open(s.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	ok, err := d.guardAtParent(a, ns, s.Ifindex, s.Ref.Owner(), func(v *podnsmap.ParentPod) { v.Limit = number }, back)
	if err == nil && !ok {
		err = fmt.Errorf("%w: no parent of %s that could limit it", ErrNoDevice, s.IfName)
	}
	return err
}

// unguardLimit takes limit number from the parent device.
func (d *Datapath) unguardLimit(l edt.Limit, number uint32) error {
	if l.Flags&edt.FlagPolice == 0 {
		return nil
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	return d.releaseAtParent(a, l.Owner, func(v *podnsmap.ParentPod) {
		if v.Limit == number {
			v.Limit = 0
		}
	})
}

// checkLimitGuard compares what the parent device knows of the limit with its number.
func (d *Datapath) checkLimitGuard(number uint32, s RateLimit) error {
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	return d.checkParent(a, s.Ref.Owner(), func(v podnsmap.ParentPod) bool { return v.Limit == number })
}
