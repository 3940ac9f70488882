// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
)

// inspection is one CHECK under way.
type inspection struct {
	*request
	*cniops.Inspection
	old remembered
}

// check compares the pod's device with prevResult and with the record, and asks
// the IPAM plugin to do the same for its part.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	r, err := p.parse(a)
	if err != nil {
		return err
	}
	return cniops.Check(ctx, a, &r.Common, p.IPAM, r.ipamType, func(i *cniops.Inspection) error {
		c := &inspection{r, i, p.remember(r.ref)}
		return c.inspect()
	})
}

func (c *inspection) inspect() error {
	entry := cniops.FindInterface(c.Prev, c.args.IfName, c.args.Netns)
	if entry == nil {
		c.Differ("%s is not in prevResult", c.args.IfName)
	}
	if c.old.found && c.old.DPDK != c.dpdk {
		c.Differ("DPDK mode is %v, and was %v: the device has got another driver", c.dpdk, c.old.DPDK)
	}
	if c.dpdk || entry == nil {
		return nil
	}
	return c.compare(entry.Name)
}

// compare looks at the device in the pod.
func (c *inspection) compare(name string) error {
	l, err := c.Pod.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		c.Differ("%s does not exist in the pod", name)
		return nil
	}
	if err != nil {
		return err
	}
	c.Add(cniops.Differences(l, c.Prev, c.args.Netns)...)
	if !l.Up {
		c.Differ("%s is down", l.Name)
	}
	if c.old.found && !c.old.same(l, name) {
		c.Differ("%s is not the device %s that was lent", l.Name, c.old.Device)
	}
	if c.old.found && l.Alias != c.old.Device {
		c.Differ("the alias of %s is %q, not its own name %s", l.Name, l.Alias, c.old.Device)
	}
	diffs, err := podiface.Check(c.Pod, l, c.Prev)
	c.Add(diffs...)
	return err
}
