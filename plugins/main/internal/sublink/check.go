// SPDX-License-Identifier: Apache-2.0

package sublink

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
	*Request
	*cniops.Inspection
	p    *plugin
	link rtnl.Link
}

// check compares everything that ADD made with what is there, and asks the IPAM
// plugin to do the same. What later plugins of a chain may change (the MTU by
// tuning, the table of a route by sbr) is compared with prevResult or not at all.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	req, err := p.parse(a, false)
	if err != nil {
		return err
	}
	return cniops.Check(ctx, a, &req.Common, p.IPAM, req.ipamType, func(i *cniops.Inspection) error {
		c := &inspection{Request: req, Inspection: i, p: p}
		return c.inspect()
	})
}

func (c *inspection) inspect() (err error) {
	name := c.Args.IfName
	var there bool
	c.link, there, err = c.Find(name+" in the pod", func() (rtnl.Link, error) { return c.Pod.LinkByName(name) })
	if err != nil || !there {
		return err
	}
	switch {
	case c.link.Kind != c.p.Name:
		c.Differ("%s is not a %s", name, c.p.Name)
		return nil
	case !c.link.Up:
		c.Differ("%s is down", name)
	}
	if want := c.Spec.Sub; !c.same(want) {
		c.Differ("%s has the settings %+v, not %+v", name, c.link.Sub, want)
	}
	// Before 1.1.0 prevResult has no MTU. Then nothing tells a wrong one from one that a later plugin has set.
	c.Add(cniops.Differences(c.link, c.Prev, c.Args.Netns)...)
	if err := c.checkMaster(); err != nil {
		return err
	}
	diffs, err := podiface.Check(c.Pod, c.link, c.Prev)
	c.Add(diffs...)
	return err
}

// same compares the kind's own settings. The broadcast queue is the wish of one
// of a master's macvlans; the kernel reports it where it can at all.
func (c *inspection) same(want rtnl.Sub) bool {
	have := c.link.Sub
	if want.BCQueueLen == 0 || have.BCQueueLen == 0 {
		want.BCQueueLen = have.BCQueueLen
	}
	return have == want
}

// checkMaster compares what the interface sits on with the configuration, or
// with the record where the configuration leaves it open: the default route may
// have moved, and a chain's prevResult is by now its own result.
func (c *inspection) checkMaster() error {
	if !c.HasMaster {
		return nil
	}
	want := c.Master.Master
	if rec := c.p.loadSection(c.ref); rec.found && rec.Master != "" {
		want = rec.Master
	}
	h, local := c.Host, c.link.PeerNetnsID < 0
	if c.Master.LinkInContainer {
		h = c.Pod
	}
	if local != c.Master.LinkInContainer {
		c.Differ("%s sits on an interface that is not%s", c.Args.IfName, c.where())
		return nil
	}
	master, err := h.LinkByIndex(c.link.PeerIndex)
	if errors.Is(err, rtnl.ErrNotFound) {
		c.Differ("the master of %s does not exist", c.Args.IfName)
		return nil
	}
	if err != nil || want == "" || master.Name == want {
		return err
	}
	l, err := h.LinkByName(want) // an alternative name, maybe
	if errors.Is(err, rtnl.ErrNotFound) || err == nil && l.Index != master.Index {
		c.Differ("%s sits on %s, not on %s", c.Args.IfName, master.Name, want)
	}
	return gone(err)
}
