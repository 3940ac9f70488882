// SPDX-License-Identifier: Apache-2.0

// Package cniskel defines a CNI plugin as five functions, and runs them by the CNI protocol.
// cmd/sluice-cni runs a plugin with Main. pkg/delegate calls one in-process.
//
// The protocol is that of upstream's pkg/skel. A test compares the two. This package adds a guard
// against the plugin's own network namespace, a result that is printed last and once, panics as
// error objects, a deadline for each verb, and error codes.
package cniskel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/log"
)

// Args is what a verb gets: the call as the specification defines it, and a
// logger that carries the call's identity.
type Args struct {
	CmdArgs
	Log *log.Logger
}

// Plugin is a CNI plugin. Each verb gets a context that ends at the verb's
// deadline or, once it has run for a tenth of a second, when the process is
// asked to terminate. Errors go through cnierr.From. A nil verb succeeds without
// doing anything.
type Plugin struct {
	// Name is the plugin's type in a configuration ("bridge").
	Name string
	// Usage is printed on stderr when CNI_COMMAND is not set.
	Usage string
	// Versions are the CNI versions that are served.
	Versions version.PluginInfo

	// Add returns the result in the configuration's cniVersion. It is printed
	// after everything else has succeeded.
	Add func(ctx context.Context, a *Args) (types.Result, error)

	Del, Check, GC, Status func(ctx context.Context, a *Args) error
}

// Options of Main. The zero value works.
type Options struct {
	// Log makes the logger; it is called at most once, and only for a verb that
	// has something to say. Nil means warnings to stderr.
	Log func() *log.Logger
	// Observe is told of each verb of this process when it has ended: how long it took since the process began to work on it, and the CNI
	// error code, 0 without an error. Calls that name no verb of the plugin are not told. It may be nil.
	Observe func(verb string, code uint, took time.Duration)
	// Restart is told the error of a verb that has undone what it did, before it is printed, and the configuration. It may execute another
	// program in place of this one, with that configuration on its standard input. It may be nil.
	Restart func(err error, config []byte)
}

// AddDeadline is how long an ADD may take: less than the four minutes after which
// kubelet gives up, and more than the daemon of the dhcp plugin tries by default.
const AddDeadline = 230 * time.Second

// Deadlines of the other verbs. A runtime gives up on its own at some point; these
// make sure that the verb has cleaned up by then. GC may have a whole node to do.
const (
	delDeadline   = 60 * time.Second
	checkDeadline = 30 * time.Second
	gcDeadline    = 5 * time.Minute
)

// signalGrace is how long a verb runs before it listens to signals.
const signalGrace = 100 * time.Millisecond

// Main runs the plugin on the process's environment, stdin and stdout, and
// returns the exit status: 0, or 1 with an error object on stdout.
func (p *Plugin) Main(o Options) int {
	began := time.Now()
	r := &run{plugin: p, options: o}
	err := r.call(stdio{os.Getenv, os.Stdin, os.Stdout, os.Stderr})
	if err == nil {
		err = r.printResult(os.Stdout)
	}
	var code uint
	if err != nil {
		code = max(1, err.Code)
		PrintError(os.Stdout, err, r.version)
	}
	if r.verb != "" && o.Observe != nil {
		o.Observe(r.verb, code, time.Since(began))
	}
	return int(min(code, 1))
}

// run is one invocation.
type run struct {
	plugin  *Plugin
	options Options
	verb    string // once known
	version string // of the configuration, once known
	result  types.Result
}

// call reads what the process is to do, and does it.
func (r *run) call(p stdio) *types.Error {
	if p.getenv("CNI_COMMAND") == "" && r.plugin.Usage != "" { // an operator looks at what this is
		fmt.Fprintln(p.stderr, r.plugin.Usage)
		fmt.Fprintf(p.stderr, "CNI protocol versions supported: %s\n", strings.Join(r.plugin.Versions.SupportedVersions(), ", "))
		return nil
	}
	command, c, bad := p.readCall()
	if bad != nil {
		return bad
	}
	if command == "VERSION" {
		if err := r.plugin.Versions.Encode(p.stdout); err != nil {
			return &types.Error{Code: cnierr.CodeIO, Msg: err.Error()}
		}
		return nil
	}
	v, ok := r.verbs()[command]
	if !ok {
		return environment("unknown CNI_COMMAND: "+command, "")
	}
	r.verb = command
	h, err := c.header()
	if err != nil {
		return cnierr.From(err)
	}
	if bad := h.validate(); bad != nil {
		return bad
	}
	if bad := checkVersion(command, h.CNIVersion, r.plugin.Versions.SupportedVersions()); bad != nil {
		return bad
	}
	r.version = h.CNIVersion
	if bad := h.refuse(command); bad != nil {
		return bad
	}
	return r.do(command, v, c)
}

// verb is a plugin's function for a command, with its deadline.
type verb struct {
	f     func(context.Context, *Args) error
	limit time.Duration
}

func (r *run) verbs() map[string]verb {
	p := r.plugin
	add := func(ctx context.Context, a *Args) (err error) {
		if p.Add != nil {
			r.result, err = p.Add(ctx, a)
		}
		return err
	}
	return map[string]verb{
		"ADD":    {add, AddDeadline},
		"DEL":    {p.Del, delDeadline},
		"CHECK":  {p.Check, checkDeadline},
		"GC":     {requireValidAttachments(p.GC), gcDeadline},
		"STATUS": {p.Status, checkDeadline},
	}
}

// do runs a verb.
func (r *run) do(command string, v verb, c *CmdArgs) *types.Error {
	if v.f == nil {
		return nil
	}
	guard := guardNetNS(c)
	if guard != nil {
		if command != "DEL" {
			return cnierr.From(guard)
		}
		c.Netns = "" // the pod's has gone; DEL still removes what is held for the pod
	}
	ctx, cancel := context.WithTimeout(context.Background(), v.limit)
	defer cancel()
	defer listen(cancel)()
	a := &Args{CmdArgs: *c, Log: r.logger(command, c)}
	err := protect(a.Log, r.plugin.Name+" "+command, func() error { return v.f(ctx, a) })
	if err != nil && r.options.Restart != nil {
		r.options.Restart(err, c.StdinData)
	}
	if err == nil {
		err = guard
	}
	return cnierr.From(err)
}

// listen calls end when the process is asked to terminate, once it has run for a
// while. Listening costs threads, a twentieth of an ADD that takes milliseconds.
// Until then the signal kills the process. That leaves what a kill -9 leaves, and
// DEL and GC remove it. The function it returns ends the listening.
func listen(end func()) func() {
	told, done := make(chan os.Signal, 1), make(chan struct{})
	soon := time.AfterFunc(signalGrace, func() {
		signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
		defer signal.Stop(told)
		select {
		case <-told:
			end()
		case <-done:
		}
	})
	return func() {
		soon.Stop()
		close(done)
	}
}

// requireValidAttachments passes a GC on only if it lists the valid attachments. libcni leaves the
// key out when its caller names none ("cnitool gc"). Nothing may be removed then, and upstream's
// plugins report no error.
func requireValidAttachments(gc func(context.Context, *Args) error) func(context.Context, *Args) error {
	if gc == nil {
		return nil
	}
	return func(ctx context.Context, a *Args) error {
		if _, _, ok := cniconf.AttachmentsMember(a.StdinData); !ok {
			a.Log.Warn("no key \"" + cniconf.KeyValidAttachments + "\": nothing is removed")
			return nil
		}
		return gc(ctx, a)
	}
}

func (r *run) logger(verb string, c *CmdArgs) *log.Logger {
	build := r.options.Log
	if build == nil {
		build = func() *log.Logger { return log.New(log.Options{}) }
	}
	return log.Lazy(build).With(
		log.String(log.KeyPlugin, r.plugin.Name),
		log.String(log.KeyCommand, verb),
		log.String(log.KeyContainerID, c.ContainerID),
		log.String(log.KeyIfName, c.IfName),
		log.String(log.KeyNetNS, c.Netns),
	)
}

// protect turns a panic into an error, so that the runtime gets an error
// object; the stack goes to the log.
func protect(l *log.Logger, what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.Error("panic", log.Any(log.KeyError, p), log.ByteString("stack", debug.Stack()))
			err = cnierr.New(cnierr.CodeKernel, fmt.Sprintf("internal error in %s: %v", what, p), "")
		}
	}()
	return f()
}

// guardNetNS refuses to work on the plugin's own network namespace, before anything is
// done (upstream finds out after its ADD). A path that cannot be opened is
// left to the plugin: each verb has its own idea of a missing namespace.
func guardNetNS(c *CmdArgs) error {
	if c.Netns == "" || c.NetnsOverride == "1" || strings.EqualFold(c.NetnsOverride, "true") {
		return nil
	}
	theirs, err := os.Stat(c.Netns)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	ours, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "find our own network namespace")
	}
	if os.SameFile(theirs, ours) {
		return cnierr.New(cnierr.CodeNetNS, fmt.Sprintf("CNI_NETNS %q is the plugin's own network namespace", c.Netns),
			"set CNI_NETNS_OVERRIDE=1 if that is meant")
	}
	return nil
}

func (r *run) printResult(w io.Writer) *types.Error {
	if r.result == nil {
		return nil
	}
	if err := r.result.PrintTo(w); err != nil {
		return &types.Error{Code: cnierr.CodeIO, Msg: "write the result to stdout", Details: err.Error()}
	}
	return nil
}

// PrintError writes a CNI error object. cniVersion, which the specification
// asks for, is left out when it is not known (the call failed before the
// configuration was read).
func PrintError(w io.Writer, e *types.Error, cniVersion string) {
	b, err := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion,omitempty"`
		*types.Error
	}{cniVersion, e}, "", "    ")
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "write the error object:", err, "- it was:", e)
	}
}
