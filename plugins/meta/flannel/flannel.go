// SPDX-License-Identifier: Apache-2.0

// Package flannel is the meta plugin that turns what flanneld wrote about this
// node (subnet.env) into the configuration of another plugin, bridge unless told
// otherwise, and delegates to it. The delegate's configuration is kept in the
// reference's place and format, so that a node can be switched with pods running.
package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/version"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "flannel"

// Delegate runs the plugin of a type, as *delegate.Runner does.
type Delegate interface {
	Add(ctx context.Context, a *cniskel.Args, plugin string) (*types100.Result, error)
	Del(ctx context.Context, a *cniskel.Args, plugin string) error
	Check(ctx context.Context, a *cniskel.Args, plugin string) error
	GC(ctx context.Context, a *cniskel.Args, plugin string) error
	Status(ctx context.Context, a *cniskel.Args, plugin string) error
}

// Deps are the plugin's ways to the world.
type Deps struct {
	Delegate Delegate
	Records  *attachments.Dir
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name: Name, Usage: version.About(Name), Versions: version.All(),
		Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status,
	}
}

// section is what an attachment record holds of this plugin. Its JSON is read
// by later versions.
type section struct {
	// File is the saved configuration of the delegate.
	File string `json:"file"`
}

// with is the call with another configuration on stdin.
func with(a *cniskel.Args, stdin []byte) *cniskel.Args {
	c := *a
	c.StdinData = stdin
	return &c
}

// add saves the delegate's configuration before it calls the delegate, since
// that is all DEL has when flanneld has gone or has got another subnet. When the
// delegate fails its DEL is run, as the specification has it. The file stays for
// the runtime's DEL where that fails too, and where it was there before: what an
// earlier ADD made may be in use.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (_ types.Result, err error) {
	c, err := load(a.StdinData)
	if err != nil {
		return nil, err
	}
	conf, kind, err := c.delegateConf()
	if err != nil {
		return nil, err
	}
	stdin, err := encode(conf)
	if err != nil {
		return nil, err
	}
	ref := a.Ref(c.Name)
	file, err := p.pickFile(c, ref)
	if err != nil {
		return nil, err
	}
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)
	if _, before := os.Lstat(file); errors.Is(before, fs.ErrNotExist) {
		rb.Push("delegate", func(ctx context.Context) error { return p.drop(ctx, a, ref, file) })
	}
	if err := p.Records.Begin(ref, a.Netns, Name, section{File: file}); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	if err := save(file, stdin); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeIO, err, "save the delegate's configuration in dataDir %q", c.DataDir)
	}
	res, err := p.Delegate.Add(ctx, with(a, stdin), kind)
	if err != nil {
		return nil, err
	}
	if err := p.Records.Complete(ref, Name, section{File: file}); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	return cniconf.Convert(res, c.Version())
}

// del needs neither flanneld nor the delegate's keys: it works from what ADD
// saved. The file goes when the delegate has succeeded, so a failed DEL can be
// repeated.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	ref := a.Ref(c.Name)
	return p.drop(ctx, a, ref, p.savedFile(c, ref))
}

// drop takes away what the delegate made, its saved configuration and the record.
func (p *plugin) drop(ctx context.Context, a *cniskel.Args, ref attachments.ID, file string) error {
	if err := p.delFile(ctx, a, file); err != nil {
		return err
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Remove(ref, Name), "remove the record")
}

func (p *plugin) delFile(ctx context.Context, a *cniskel.Args, file string) error {
	stdin, kind, err := readSaved(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errUnusable):
		// Nothing can be learned from it, and DEL must end.
		a.Log.Warn("dropping a saved configuration that cannot be read", log.String("file", file), log.Error(err))
		return removeFile(file)
	case err != nil:
		return cnierr.Wrap(cnierr.CodeIO, err, "read the delegate's saved configuration")
	}
	if err := p.Delegate.Del(ctx, with(a, stdin), kind); err != nil {
		return err
	}
	return removeFile(file)
}

// check is the delegate's, with what ADD saved.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	if _, err := c.Chained(); err != nil {
		return err
	}
	file := p.savedFile(c, a.Ref(c.Name))
	saved, kind, err := readSaved(file)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeCheck, err, "the delegate's configuration that ADD saved")
	}
	stdin, err := merge(saved, map[string]json.RawMessage{
		"prevResult": c.RawPrevResult, "runtimeConfig": c.RuntimeConfig, "cniVersion": quoted(c.CNIVersion),
	})
	if err != nil {
		return err
	}
	return p.Delegate.Check(ctx, with(a, stdin), kind)
}

// gc lets the delegate collect, then drops the saved configurations of this
// network's attachments that are no longer valid.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	valid, err := cniconf.ValidRefs(a.StdinData, c.Name)
	if err != nil {
		return err
	}
	containers := make(map[string]bool)
	for ref := range valid {
		containers[ref.ContainerID] = true
	}
	return errors.Join(p.gcDelegate(ctx, a, c), p.gcRecords(c.Name, valid), p.gcFiles(c, containers))
}

// gcDelegate passes the list of valid attachments on. Where flanneld has not
// written its file, the delegate's own keys are all there is.
func (p *plugin) gcDelegate(ctx context.Context, a *cniskel.Args, c *config) error {
	conf, kind, err := c.delegateConf()
	if err != nil {
		a.Log.Warn("collecting without what flanneld knows", log.Error(err))
		if conf, kind, err = c.bareConf(); err != nil {
			return err
		}
	}
	for _, key := range cniconf.AttachmentKeys() {
		if raw, ok := c.raw[key]; ok {
			conf[key] = raw
		}
	}
	stdin, err := encode(conf)
	if err != nil {
		return err
	}
	return p.Delegate.GC(ctx, with(a, stdin), kind)
}

// status: an ADD would work if flanneld has done its part and the delegate can
// do its own.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	c, err := load(a.StdinData)
	if err != nil {
		return err
	}
	conf, kind, err := c.delegateConf()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "flannel is not ready")
	}
	stdin, err := encode(conf)
	if err != nil {
		return err
	}
	return p.Delegate.Status(ctx, with(a, stdin), kind)
}
