// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/podiface"
)

// inspection is one CHECK under way.
type inspection struct {
	*request
	*cniops.Inspection
}

// check compares everything that ADD made with what is there, and asks the IPAM
// plugin to do the same.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	r, err := parse(a)
	if err != nil {
		return err
	}
	return cniops.Check(ctx, a, &r.Common, p.IPAM, r.ipamType, func(i *cniops.Inspection) error {
		c := &inspection{r, i}
		return c.inspect()
	})
}

func (c *inspection) inspect() error {
	name := c.args.IfName
	l, err := c.Pod.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		c.Differ("%s does not exist in the pod", name)
		return nil
	}
	if err != nil {
		return err
	}
	if l.Tun == nil || !l.Tun.Tap {
		c.Differ("%s is not a tap device", name)
		return nil
	}
	c.Add(cniops.Differences(l, c.Prev, c.args.Netns)...)
	c.compareTun(*l.Tun)
	if !l.Up {
		c.Differ("%s is down", name)
	}
	if err := c.compareMaster(l); err != nil {
		return err
	}
	diffs, err := podiface.Check(c.Pod, l, c.Prev)
	c.Add(diffs...)
	return err
}

func (c *inspection) compareTun(have rtnl.Tun) {
	if have.MultiQueue != c.MultiQueue {
		c.Differ("multiQueue is %v, not %v", have.MultiQueue, c.MultiQueue)
	}
	for _, id := range []struct {
		key        string
		have, want *uint32
	}{{"owner", have.Owner, c.Owner}, {"group", have.Group, c.Group}} {
		// A configuration without the key says nothing about it, as in upstream.
		if id.want != nil && show(id.have) != show(id.want) {
			c.Differ("%s is %s, not %s", id.key, show(id.have), show(id.want))
		}
	}
}

func show(id *uint32) string {
	if id == nil {
		return "nobody"
	}
	return fmt.Sprint(*id)
}

func (c *inspection) compareMaster(l rtnl.Link) error {
	if c.Bridge == "" {
		return nil
	}
	br, err := c.Pod.LinkByName(c.Bridge)
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return err
	}
	if err != nil || l.MasterIndex != br.Index {
		c.Differ("%s is not a port of %s", l.Name, c.Bridge)
	}
	return nil
}
