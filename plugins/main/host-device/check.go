// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
)

func differs(format string, a ...any) error {
	return cnierr.New(cnierr.CodeCheck, fmt.Sprintf(format, a...), "")
}

// check compares the pod's device with prevResult and with the record, and asks
// the IPAM plugin to do the same for its part.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	r, err := p.parse(a)
	if err != nil {
		return err
	}
	prev, err := cniops.Prev(&r.Common)
	if err != nil {
		return err
	}
	e, err := open(a.Netns)
	if err != nil {
		return err
	}
	defer e.close()
	var diffs []error
	if r.ipamType != "" {
		diffs = append(diffs, p.IPAM.Check(ctx, a, r.ipamType))
	}
	entry := cniops.FindInterface(prev, a.IfName, a.Netns)
	if entry == nil {
		diffs = append(diffs, differs("%s is not in prevResult", a.IfName))
	}
	old := p.remember(r.ref)
	if old.DPDK != r.dpdk && old.found {
		diffs = append(diffs, differs("DPDK mode is %v, and was %v: the device has got another driver", r.dpdk, old.DPDK))
	}
	if !r.dpdk {
		found, err := e.compare(prev, entry, old)
		diffs = append(diffs, found...)
		diffs = append(diffs, cnierr.Wrap(cnierr.CodeKernel, err, "inspect the attachment"))
	}
	return errors.Join(diffs...)
}

// compare looks at the device in the pod.
func (e *ends) compare(prev *types100.Result, entry *types100.Interface, old remembered) (diffs []error, err error) {
	if entry == nil {
		return nil, nil
	}
	l, err := e.pod.LinkByName(entry.Name)
	if errors.Is(err, rtnl.ErrNotFound) {
		return []error{differs("%s does not exist in the pod", entry.Name)}, nil
	}
	if err != nil {
		return nil, err
	}
	diffs = append(diffs, cniops.Differences(l, prev, entry.Sandbox)...)
	if !l.Up {
		diffs = append(diffs, differs("%s is down", l.Name))
	}
	if old.found && !old.same(l, entry.Name) {
		diffs = append(diffs, differs("%s is not the device %s that was lent", l.Name, old.Device))
	}
	if old.found && l.Alias != old.Device {
		diffs = append(diffs, differs("the alias of %s is %q, not its own name %s", l.Name, l.Alias, old.Device))
	}
	more, err := podiface.Check(e.pod, l, prev)
	return append(diffs, more...), err
}
