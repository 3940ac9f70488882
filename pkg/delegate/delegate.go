// SPDX-License-Identifier: Apache-2.0

// Package delegate calls the plugin a configuration names, an IPAM plugin most often, as the
// specification's section "Plugin Delegation" says: looked up in CNI_PATH, with
// the caller's environment and its whole stdin unmodified.
//
// When the file that CNI_PATH resolves to is our own executable, or a starter of
// it (pkg/install), the plugin is called in-process: same stdin, same answer,
// without the cost of a process.
package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/log"
)

// selfExe names the running executable, whatever it was started as.
const selfExe = "/proc/self/exe"

// Runner calls plugins. The zero value always executes a file.
type Runner struct {
	// Key is the configuration's key that names the plugin, for errors; empty
	// means "ipam.type".
	Key string
	// Self is the path of our own binary; empty means the running executable.
	Self string
	// InProcess holds the plugins that our binary contains, by type.
	InProcess map[string]*cniskel.Plugin
}

// Add runs the delegate's ADD and returns its result as the newest type. An
// error keeps the delegate's code; the delegate has then released what it took,
// but the caller should still call Del.
func (r *Runner) Add(ctx context.Context, a *cniskel.Args, kind string) (*types100.Result, error) {
	p, path, err := r.find(a, kind)
	if err != nil {
		return nil, err
	}
	if p == nil {
		out, err := execPlugin(ctx, path, "ADD", a)
		if err != nil {
			return nil, err
		}
		res, err := cniconf.ParseResult("result of "+kind, out, resultVersion(out, a))
		if err == nil && res == nil {
			err = cnierr.New(cnierr.CodeDecode, kind+" returned no result", path)
		}
		return res, err
	}
	res, err := p.Add(ctx, inProcess(a, kind))
	if err != nil {
		return nil, err
	}
	newest, err := types100.NewResultFromResult(res)
	return newest, cnierr.Wrap(cnierr.CodeDecode, err, "convert the result of %s", kind)
}

// resultVersion is the version that a result says it has, as libcni takes it, or
// the configuration's.
func resultVersion(result []byte, a *cniskel.Args) string {
	var own struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(result, &own) == nil && own.CNIVersion != "" {
		return own.CNIVersion
	}
	return a.CNIVersion()
}

// Del runs the delegate's DEL.
func (r *Runner) Del(ctx context.Context, a *cniskel.Args, kind string) error {
	return r.verb(ctx, a, kind, "DEL")
}

// Check runs the delegate's CHECK; prevResult is in the caller's stdin already.
func (r *Runner) Check(ctx context.Context, a *cniskel.Args, kind string) error {
	return r.verb(ctx, a, kind, "CHECK")
}

// GC runs the delegate's GC; the list of valid attachments is in stdin already.
func (r *Runner) GC(ctx context.Context, a *cniskel.Args, kind string) error {
	return r.verb(ctx, a, kind, "GC")
}

// Status runs the delegate's STATUS. A delegate that cannot be found means that
// no ADD can work now: code 50.
func (r *Runner) Status(ctx context.Context, a *cniskel.Args, kind string) error {
	if _, _, err := r.find(a, kind); err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "the plugin to delegate to is not usable")
	}
	return r.verb(ctx, a, kind, "STATUS")
}

func (r *Runner) verb(ctx context.Context, a *cniskel.Args, kind, verb string) error {
	p, path, err := r.find(a, kind)
	if err != nil {
		return err
	}
	if p == nil {
		_, err := execPlugin(ctx, path, verb, a)
		return err
	}
	f := map[string]func(context.Context, *cniskel.Args) error{"DEL": p.Del, "CHECK": p.Check, "GC": p.GC, "STATUS": p.Status}[verb]
	if f == nil {
		return nil
	}
	return f(ctx, inProcess(a, kind))
}

// find looks the type up in CNI_PATH as libcni does: the first regular file of
// that name, whether executable or not. It returns a plugin when that file is
// ours and our binary contains the type, else the path.
func (r *Runner) find(a *cniskel.Args, kind string) (*cniskel.Plugin, string, error) {
	if kind == "" {
		return nil, "", cnierr.Config(r.key(), "", "a name is required")
	}
	if strings.ContainsRune(kind, os.PathSeparator) {
		return nil, "", cnierr.Config(r.key(), kind, "a plugin name has no slash")
	}
	for _, dir := range filepath.SplitList(a.Path) {
		path := filepath.Join(dir, kind)
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		if p := r.InProcess[kind]; p != nil && r.isOurs(path, fi) {
			return r.served(p, a)
		}
		return nil, path, nil
	}
	return nil, "", cnierr.Config(r.key(), kind, "no such plugin in CNI_PATH "+a.Path)
}

func (r *Runner) key() string {
	if r.Key == "" {
		return "ipam.type"
	}
	return r.Key
}

// isOurs reports whether the file at path is our own program, or starts it.
func (r *Runner) isOurs(path string, fi os.FileInfo) bool {
	self := r.Self
	if self == "" {
		self = selfExe
	}
	own, err := os.Stat(self)
	if err != nil {
		return false
	}
	if program := install.Interpreter(path, fi); program != "" {
		if fi, err = os.Stat(program); err != nil {
			return false
		}
	}
	return os.SameFile(fi, own)
}

// served checks the version as the delegate's own skeleton would.
func (r *Runner) served(p *cniskel.Plugin, a *cniskel.Args) (*cniskel.Plugin, string, error) {
	v := a.CNIVersion()
	for _, s := range p.Versions.SupportedVersions() {
		if s == v {
			return p, "", nil
		}
	}
	return nil, "", cnierr.New(cnierr.CodeIncompatibleVersion, p.Name+" does not serve cniVersion "+v, "")
}

func inProcess(a *cniskel.Args, kind string) *cniskel.Args {
	c := *a
	if c.Log == nil {
		c.Log = log.NewNop()
	}
	// The plugin that the runtime called is a field already; a delegate's delegate adds its name to this one.
	c.Log = c.Log.Named(kind)
	return &c
}

// coded keeps a delegate's own error object; whatever else went wrong with the
// process names its path.
func coded(err error, path string) error {
	var obj *types.Error
	if errors.As(err, &obj) && obj.Code != 0 {
		return err
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "run %s", path)
}
