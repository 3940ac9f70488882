// SPDX-License-Identifier: Apache-2.0

package tap

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

// inspection is one CHECK under way. It collects every difference.
type inspection struct {
	*request
	diffs []error
}

func (c *inspection) differ(format string, a ...any) {
	c.diffs = append(c.diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf(format, a...), ""))
}

// check compares everything that ADD made with what is there, and asks the IPAM
// plugin to do the same.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	r, err := parse(a)
	if err != nil {
		return err
	}
	prev, err := cniops.Prev(&r.Common)
	if err != nil {
		return err
	}
	site, err := cniops.Open(a.Netns)
	if err != nil {
		return err
	}
	defer site.Close()
	c := &inspection{request: r}
	if r.ipamType != "" {
		c.diffs = append(c.diffs, p.IPAM.Check(ctx, a, r.ipamType))
	}
	if err := c.inspect(site.Pod, prev); err != nil {
		c.diffs = append(c.diffs, cnierr.Wrap(cnierr.CodeKernel, err, "inspect the attachment"))
	}
	return errors.Join(c.diffs...)
}

func (c *inspection) inspect(pod *rtnl.Handle, prev *types100.Result) error {
	name := c.args.IfName
	l, err := pod.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		c.differ("%s does not exist in the pod", name)
		return nil
	}
	if err != nil {
		return err
	}
	if l.Tun == nil || !l.Tun.Tap {
		c.differ("%s is not a tap device", name)
		return nil
	}
	c.diffs = append(c.diffs, cniops.Differences(l, prev, c.args.Netns)...)
	c.compareTun(*l.Tun)
	if !l.Up {
		c.differ("%s is down", name)
	}
	if err := c.compareMaster(pod, l); err != nil {
		return err
	}
	diffs, err := podiface.Check(pod, l, prev)
	c.diffs = append(c.diffs, diffs...)
	return err
}

func (c *inspection) compareTun(have rtnl.Tun) {
	if have.MultiQueue != c.MultiQueue {
		c.differ("multiQueue is %v, not %v", have.MultiQueue, c.MultiQueue)
	}
	for _, id := range []struct {
		key        string
		have, want *uint32
	}{{"owner", have.Owner, c.Owner}, {"group", have.Group, c.Group}} {
		// A configuration without the key says nothing about it, as in upstream.
		if id.want != nil && show(id.have) != show(id.want) {
			c.differ("%s is %s, not %s", id.key, show(id.have), show(id.want))
		}
	}
}

func show(id *uint32) string {
	if id == nil {
		return "nobody"
	}
	return fmt.Sprint(*id)
}

func (c *inspection) compareMaster(pod *rtnl.Handle, l rtnl.Link) error {
	if c.Bridge == "" {
		return nil
	}
	br, err := pod.LinkByName(c.Bridge)
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return err
	}
	if err != nil || l.MasterIndex != br.Index {
		c.differ("%s is not a port of %s", l.Name, c.Bridge)
	}
	return nil
}
