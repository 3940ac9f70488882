// SPDX-License-Identifier: Apache-2.0

package sublink

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
	*Request
	*cniops.Namespaces
	p    *plugin
	prev *types100.Result
	link rtnl.Link

	diffs []error
}

func (c *inspection) differ(format string, a ...any) {
	c.diffs = append(c.diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf(format, a...), ""))
}

// check compares everything that ADD made with what is there, and asks the IPAM
// plugin to do the same. What later plugins of a chain may change (the MTU by
// tuning, the table of a route by sbr) is compared with prevResult or not at all.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	req, err := p.parse(a, false)
	if err != nil {
		return err
	}
	c := &inspection{Request: req, p: p}
	if c.prev, err = cniops.Prev(&req.Common); err != nil {
		return err
	}
	if c.Namespaces, err = cniops.Open(a.Netns); err != nil {
		return err
	}
	defer c.Namespaces.Close()
	if req.ipamType != "" {
		c.diffs = append(c.diffs, p.IPAM.Check(ctx, a, req.ipamType))
	}
	if err := c.inspect(); err != nil {
		c.diffs = append(c.diffs, cnierr.Wrap(cnierr.CodeKernel, err, "inspect the attachment"))
	}
	return errors.Join(c.diffs...)
}

func (c *inspection) inspect() (err error) {
	name := c.Args.IfName
	c.link, err = c.Pod.LinkByName(name)
	switch {
	case errors.Is(err, rtnl.ErrNotFound):
		c.differ("%s in the pod does not exist", name)
		return nil
	case err != nil:
		return err
	case c.link.Kind != c.p.Name:
		c.differ("%s is not a %s", name, c.p.Name)
		return nil
	case !c.link.Up:
		c.differ("%s is down", name)
	}
	if want := c.Spec.Sub; !c.same(want) {
		c.differ("%s has the settings %+v, not %+v", name, c.link.Sub, want)
	}
	c.compare()
	if err := c.checkMaster(); err != nil {
		return err
	}
	diffs, err := podiface.Check(c.Pod, c.link, c.prev)
	c.diffs = append(c.diffs, diffs...)
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

// compare looks at prevResult's entry. Where that has no MTU (before 1.1.0) nobody
// tells a wrong one from one that a later plugin has set.
func (c *inspection) compare() {
	c.diffs = append(c.diffs, cniops.Differences(c.link, c.prev, c.Args.Netns)...)
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
		c.differ("%s sits on an interface that is not%s", c.Args.IfName, c.where())
		return nil
	}
	master, err := h.LinkByIndex(c.link.PeerIndex)
	if errors.Is(err, rtnl.ErrNotFound) {
		c.differ("the master of %s does not exist", c.Args.IfName)
		return nil
	}
	if err != nil || want == "" || master.Name == want {
		return err
	}
	l, err := h.LinkByName(want) // an alternative name, maybe
	if errors.Is(err, rtnl.ErrNotFound) || err == nil && l.Index != master.Index {
		c.differ("%s sits on %s, not on %s", c.Args.IfName, master.Name, want)
	}
	return gone(err)
}
