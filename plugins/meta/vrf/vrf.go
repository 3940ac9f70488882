// SPDX-License-Identifier: Apache-2.0

// Package vrf is the chained plugin that puts a pod's interface into a VRF: a
// routing table of its own, inside the pod's network namespace, for one or
// several interfaces.
//
// It owns the VRF device, which goes with its last interface, and the section
// "vrf" of the attachment record. It needs a kernel with VRFs (CONFIG_NET_VRF).
package vrf

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "vrf"

// since is the first CNI version upstream's plugin serves.
const since = "0.3.1"

// Deps are the plugin's ways to the world.
type Deps struct{ Records *attachments.Dir }

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name: Name, Usage: version.About(Name), Versions: version.Since(since),
		Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: status,
	}
}

// conf is the network configuration; README.md describes the keys.
type conf struct {
	cniconf.Common

	VRFName string `json:"vrfname"`
	Table   uint32 `json:"table"`
}

// request is a validated call.
type request struct {
	conf
	args *cniskel.Args
	prev *types100.Result
}

// parse decodes and validates everything but prevResult.
func parse(a *cniskel.Args) (*request, error) {
	r := &request{args: a}
	if err := cniconf.Load(a.StdinData, &r.conf); err != nil {
		return nil, err
	}
	switch {
	case r.VRFName == "":
		return nil, cnierr.Config("vrfname", "", "a name is required")
	case cniconf.BadIfName(r.VRFName) != "":
		return nil, cnierr.Config("vrfname", r.VRFName, cniconf.BadIfName(r.VRFName))
	case r.VRFName == a.IfName:
		return nil, cnierr.Config("vrfname", r.VRFName, "is the name of the pod's interface")
	case r.Table == rtnl.TableLocal || r.Table == rtnl.TableMain:
		return nil, cnierr.Config("table", r.Table, "is the pod's own, not one for a VRF")
	}
	return r, nil
}

// parseChained is parse for a call that must have prevResult.
func parseChained(a *cniskel.Args) (r *request, err error) {
	if r, err = parse(a); err != nil {
		return nil, err
	}
	r.prev, err = r.Chained()
	return r, err
}

// section is what an attachment record holds of this plugin. Its JSON is read
// by later versions.
type section struct {
	NetNS uint64 `json:"netnsInode,omitempty"` // a path may name another namespace later
	VRF   string `json:"vrf"`
	Table uint32 `json:"table,omitempty"`
	former
}

func (p *plugin) recall(ref attachments.ID) (s section, found bool, path string) {
	return attachments.ReadSection[section](p.Records, ref, Name)
}

// add puts the interface into the VRF and passes the result on.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
	r, err := parseChained(a)
	if err != nil {
		return nil, err
	}
	out, err := cniconf.Convert(r.prev, r.Version())
	if err != nil {
		return nil, err
	}
	pod, err := podns.Open(a.Netns)
	if err != nil {
		return nil, err
	}
	defer pod.Close() // which also ends the lock
	if err := pod.Lock(ctx, p.Records); err != nil {
		return nil, err
	}
	if err := p.join(ctx, r, pod); err != nil {
		return nil, err
	}
	return out, nil
}

// check compares the VRF, its table and the interface in it with what ADD made.
func (p *plugin) check(_ context.Context, a *cniskel.Args) error {
	r, err := parseChained(a)
	if err != nil {
		return err
	}
	pod, err := podns.Open(a.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	link, err := pod.LinkByName(a.IfName)
	if err != nil {
		return missing(err, a.IfName)
	}
	dev, err := pod.LinkByName(r.VRFName)
	if err != nil {
		return missing(err, r.VRFName)
	}
	old, _, _ := p.recall(a.Ref(r.Name))
	var diffs []error
	differ := func(wrong bool, format string, v ...any) {
		if wrong {
			diffs = append(diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf(format, v...), ""))
		}
	}
	want := r.Table
	if want == 0 {
		want = old.Table
	}
	differ(dev.Kind != Name, "%s is not a VRF", dev.Name)
	differ(want != 0 && dev.VRFTable != want, "%s has the table %d, not %d", dev.Name, dev.VRFTable, want)
	differ(!dev.Up, "%s is down", dev.Name)
	differ(link.MasterIndex != dev.Index, "%s is not in %s", link.Name, dev.Name)
	if link.MasterIndex == dev.Index {
		more, err := lacks(pod, link, int(dev.VRFTable), r)
		diffs = append(append(diffs, more...), cnierr.Wrap(cnierr.CodeKernel, err, "inspect %s", link.Name))
	}
	return errors.Join(diffs...)
}

func missing(err error, name string) error {
	if errors.Is(err, rtnl.ErrNotFound) {
		return cnierr.New(cnierr.CodeCheck, name+" does not exist in the pod", "")
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", name)
}

// status says whether the configuration is one that ADD accepts. Whether the
// kernel has VRFs only making one would tell.
func status(_ context.Context, a *cniskel.Args) error {
	_, err := parse(a)
	return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
}
