// SPDX-License-Identifier: Apache-2.0

// Package storeproc runs sluice-ipam-store, the program that links the clients of the stores: one request on standard
// input, one reply on standard output. Their initialisers take longer than an ADD that needs no store.
//
// The plugin calls Program, and cmd/sluice-ipam-store answers with Serve. It must not link a client itself.
package storeproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
)

// Name is the program's file name. It is beside the plugin's.
const Name = "sluice-ipam-store"

// Errors that the reply carries by name, besides those of claims.
var (
	ErrFull  = errors.New("the pool is full")
	ErrTaken = errors.New("the address is taken")
	ErrMoved = errors.New("the node has another slice")
	ErrHeld  = errors.New("the address is in use by an earlier pod")
)

var kinds = helperproc.ErrorCodes{
	"full": ErrFull, "taken": ErrTaken, "held": ErrHeld, "moved": ErrMoved, "owner": claims.ErrOwner,
	"unavailable": claims.ErrUnavailable, "denied": claims.ErrDenied, "conflict": claims.ErrConflict,
}

// Job is a request.
type Job struct {
	Config      conf.Config    `json:"config"`
	Node        blocks.Node    `json:"node"`
	Request     claims.Request `json:"request"`
	ContainerID string         `json:"containerID,omitempty"`
	IfName      string         `json:"ifname,omitempty"`
	SlicePool   string         `json:"slicePool,omitempty"`
	Slice       string         `json:"slice,omitempty"` // node and range, as the node remembers them
	Pod         claims.Pod     `json:"pod"`
	Owner       claims.Owner   `json:"owner"`
	IPs         []netip.Prefix `json:"ips,omitempty"`
}

// Time limits of one process.
const (
	callLimit   = 25 * time.Second
	upkeepLimit = 3 * time.Minute
	patience    = 8 * time.Second
	fullWait    = 8 * time.Second
)

// Program is the program. The zero value is the one beside the running executable.
type Program struct{ Path string }

func (p Program) path() (string, error) {
	if p.Path != "" {
		return p.Path, nil
	}
	return helperproc.SiblingPath(Name)
}

// Verbs of the program. Each is about Job.Request, unless it says otherwise.
const (
	Ensure = "ensure" // makes sure that the node's file has an address
	Upkeep = "upkeep" // claims ahead and gives back, and stays as Keep does
	Keep   = "keep"   // stays while the node has unused addresses, and gives them back when others need them
	Forget = "forget" // releases what whereabouts allocated for the attachments that the node's file owes to the pool
	Of     = "of"     // answers the offsets that whereabouts allocated for the attachment
	Ping   = "ping"   // reads the pool
	Slice  = "slice"  // answers the name of the node and its slice of Job.SlicePool
	Owner  = "owner"  // answers what the addresses of Job.Pod are kept for
	Bind   = "bind"   // notes for Job.Owner what the pod has
)

// Call runs the program and waits for it. out is set to what it answers, unless it is nil.
func (p Program) Call(ctx context.Context, verb string, j Job, out any) error {
	path, err := p.path()
	if err != nil {
		return err
	}
	if out == nil {
		out = new(any)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit+5*time.Second)
	defer cancel()
	return helperproc.Program{Path: path}.Call(ctx, verb, j, out, nil, kinds)
}

// firstInherited is the first file descriptor behind standard input, output and error.
const firstInherited = 3

// Start runs the program for Upkeep or Keep and does not wait for it. For Keep it does not if a process stays already. The process has a
// session of its own and holds none of the caller's files: a runtime waits until no process holds the plugin's output.
func (p Program) Start(verb string, j Job) error {
	if verb == Keep && Kept(context.Background(), &j) {
		return nil
	}
	path, err := p.path()
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"job": verb, "in": j})
	if err != nil {
		return err
	}
	in, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	cmd := exec.Command(path)
	cmd.Dir, cmd.Stdin = "/", in
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	// What this process has inherited, such as a lock of the caller, ends with it. Linux 5.10 keeps it: it does not know the flag.
	_ = unix.CloseRange(firstInherited, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	_, err = w.Write(body) // less than a pipe holds
	return errors.Join(err, w.Close(), cmd.Process.Release())
}

// Opener opens the store of a configuration.
type Opener func(ctx context.Context, c *conf.Config) (claims.Store, error)

// Serve answers the request that in holds.
func Serve(ctx context.Context, open Opener, logger *log.Logger, in io.Reader, out io.Writer) error {
	jobs := map[string]helperproc.Job{}
	for verb := range verbs {
		jobs[verb] = helperproc.Job{ErrorCodes: kinds, Do: func(ctx context.Context, in json.RawMessage) (any, error) {
			var j Job
			if err := json.Unmarshal(in, &j); err != nil {
				return nil, err
			}
			got, err := Do(ctx, opened(open, logger, verb), verb, &j)
			if verb == Upkeep || verb == Keep {
				err = errors.Join(err, Stay(ctx, &j, opened(open, logger, Keep), logger))
			}
			return got, err
		}}
	}
	return helperproc.Serve(ctx, jobs, in, out)
}

// Do carries out one verb. Its error is one that the reply can name.
func Do(ctx context.Context, claimer Claimer, verb string, j *Job) (any, error) {
	c, end, err := claimer(ctx, j)
	if err != nil {
		return nil, err
	}
	defer end()
	limit := callLimit
	if verb == Upkeep {
		limit = upkeepLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := verbs[verb](ctx, c, j)
	return got, named(err)
}

// opened is the Claimer of this program.
func opened(open Opener, logger *log.Logger, verb string) Claimer {
	return func(ctx context.Context, j *Job) (*claims.Claimer, func(), error) {
		s, err := open(ctx, &j.Config)
		if err != nil {
			return nil, nil, err
		}
		end := func() {}
		if closer, ok := s.(io.Closer); ok {
			end = func() { _ = closer.Close() }
		}
		c := &claims.Claimer{
			Store: s, Node: j.Node, Dir: j.Config.DataDir, FullWait: fullWait, Patience: patience,
			Log: j.Config.Logger(logger, log.String(log.KeyPlugin, Name), log.String("verb", verb)),
		}
		if j.Config.Backend == conf.Kubernetes { // tokens end
			c.Reopen = func() (claims.Store, error) { return open(ctx, &j.Config) }
		}
		return c, end, nil
	}
}

var verbs = map[string]func(ctx context.Context, c *claims.Claimer, j *Job) (any, error){
	Ensure: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		return nil, ensure(ctx, c, j)
	},
	Upkeep: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		return nil, c.Upkeep(ctx, &j.Request)
	},
	Keep: func(context.Context, *claims.Claimer, *Job) (any, error) { return nil, nil }, // Serve does all of it afterwards
	Forget: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		return nil, c.Forget(ctx, &j.Request)
	},
	Of: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		return c.Of(ctx, &j.Request, j.ContainerID, j.IfName)
	},
	Ping: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		_, err := c.Store.Get(ctx, j.Request.Pool)
		return nil, err
	},
	Owner: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		o, err := owners(c)
		if err != nil {
			return nil, err
		}
		return o.Owner(ctx, j.Pod)
	},
	Bind: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		o, err := owners(c)
		if err != nil {
			return nil, err
		}
		return nil, o.Bind(ctx, j.Pod, j.Owner, j.IPs)
	},
	Slice: func(ctx context.Context, c *claims.Claimer, j *Job) (any, error) {
		node, err := c.Store.NodeName(ctx, j.Node)
		if err != nil {
			return nil, err
		}
		if node == "" {
			node = j.Node.Name
		}
		slice, err := c.Store.Slice(ctx, j.SlicePool, node)
		return node + " " + slice, err
	},
}

// ensure reads the slice again, and then makes sure of an address. What the node does not use of a slice that is another's
// by now goes back.
func ensure(ctx context.Context, c *claims.Claimer, j *Job) error {
	if j.SlicePool != "" {
		node, _, _ := strings.Cut(j.Slice, " ")
		slice, err := c.Store.Slice(ctx, j.SlicePool, node)
		if err != nil {
			return err
		}
		if node+" "+slice != j.Slice {
			return errors.Join(fmt.Errorf("NodeSlicePool %s: %w: %s", j.SlicePool, ErrMoved, slice), c.Release(ctx, &j.Request))
		}
	}
	return c.Ensure(ctx, &j.Request)
}

func owners(c *claims.Claimer) (claims.Owners, error) {
	o, ok := c.Store.(claims.Owners)
	if !ok {
		return nil, fmt.Errorf("%w: the store %s knows no pods", claims.ErrOwner, c.Store.Place())
	}
	return o, nil
}

// named makes an error one that the reply can name.
func named(err error) error {
	var full *claims.FullError
	if errors.As(err, &full) {
		kind := ErrFull
		if full.Wanted != "" {
			kind = ErrTaken
		}
		return &kinded{full.Error(), kind}
	}
	if errors.As(err, new(*claims.HeldError)) {
		return &kinded{err.Error(), ErrHeld}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &kinded{err.Error(), claims.ErrUnavailable}
	}
	return err
}

type kinded struct {
	text string
	kind error
}

func (k *kinded) Error() string { return k.text }
func (k *kinded) Unwrap() error { return k.kind }
