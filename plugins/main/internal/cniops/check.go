// SPDX-License-Identifier: Apache-2.0

package cniops

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Inspection is one CHECK under way. It collects every difference.
type Inspection struct {
	*Namespaces
	Prev  *types100.Result
	diffs []error
}

// Differ notes a difference.
func (i *Inspection) Differ(format string, a ...any) {
	i.Add(cnierr.New(cnierr.CodeCheck, fmt.Sprintf(format, a...), ""))
}

// Add notes differences that others have found. Nil is none.
func (i *Inspection) Add(diffs ...error) { i.diffs = append(i.diffs, diffs...) }

// Find looks a device up and reports a missing one as a difference. what names it.
func (i *Inspection) Find(what string, get func() (rtnl.Link, error)) (l rtnl.Link, there bool, err error) {
	l, err = get()
	if errors.Is(err, rtnl.ErrNotFound) {
		i.Differ("%s does not exist", what)
		return l, false, nil
	}
	return l, err == nil, err
}

// Check is a CHECK: it asks the IPAM plugin, if the configuration names one, and calls inspect,
// which compares what ADD made with what is there. The error has all that both found.
func Check(ctx context.Context, a *cniskel.Args, c *cniconf.Common, p ipam.Plugin, ipamType string, inspect func(*Inspection) error) error {
	prev, err := Prev(c)
	if err != nil {
		return err
	}
	i := &Inspection{Prev: prev}
	if i.Namespaces, err = Open(a.Netns); err != nil {
		return err
	}
	defer i.Close()
	if ipamType != "" {
		i.Add(p.Check(ctx, a, ipamType))
	}
	if err := inspect(i); err != nil {
		i.Add(cnierr.Wrap(cnierr.CodeKernel, err, "inspect the attachment"))
	}
	return errors.Join(i.diffs...)
}
