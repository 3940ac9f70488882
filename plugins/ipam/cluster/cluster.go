// SPDX-License-Identifier: Apache-2.0

// Package cluster is the plugin of cluster-wide addresses, sluice-ipam and whereabouts. ADD and DEL work on the node's
// own file (blocks); what needs the store of the pools is done by the program sluice-ipam-store.
//
// cmd/sluice-ipam runs it. It must not link a client of a store: a plugin call starts without one.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/storeproc"
)

// Name is the plugin's own type in a configuration. It answers to conf.Whereabouts too.
const Name = conf.Type

// Store does what needs the store of the pools. storeproc.Program is the one of the real node; tests have nodes in one process.
type Store interface {
	// Call waits for one of storeproc's verbs, whose answer is out, or nil.
	Call(ctx context.Context, verb string, j storeproc.Job, out any) error
	// Start begins storeproc.Upkeep or storeproc.Keep, and returns at once.
	Start(verb string, j storeproc.Job) error
}

// Deps are what the plugin needs of the node. The zero value is the real node.
type Deps struct {
	Name  string // under which it was called; empty: Name
	Store Store
	Node  func(confPath, dataDir string) blocks.Node
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	if d.Name == "" {
		d.Name = Name
	}
	p := &plugin{d}
	if p.Store == nil {
		p.Store = storeproc.Program{}
	}
	if p.Node == nil {
		p.Node = blocks.ThisNode
	}
	return &cniskel.Plugin{
		Name: d.Name, Usage: version.About(d.Name), Versions: version.All(),
		Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status,
	}
}

// call is one call of a verb.
type call struct {
	*plugin
	c    *conf.Config
	a    *cniskel.Args
	node blocks.Node
}

func (p *plugin) call(c *conf.Config, a *cniskel.Args) *call {
	a.Log = c.Logger(a.Log, log.String(log.KeyPlugin, p.Name), log.String(log.KeyNetwork, c.Name), log.String("pod", c.PodRef()),
		log.String(log.KeyContainerID, a.ContainerID), log.String(log.KeyIfName, a.IfName))
	for _, w := range c.Warnings {
		a.Log.Warn(w)
	}
	return &call{plugin: p, c: c, a: a, node: p.Node(c.ConfPath, c.DataDir)}
}

// add returns an address of each range, and after those the addresses that no pool has. On any error it gives back
// what this call took.
func (p *plugin) add(ctx context.Context, a *cniskel.Args) (res types.Result, err error) {
	c, err := conf.Load(a)
	if err != nil {
		return nil, err
	}
	l := p.call(c, a)
	wanted, err := c.Distribute()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.hasNothing(ctx)
		}
	}()
	out := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.Routes, DNS: c.DNS}
	owner, err := l.owner(ctx)
	if err != nil {
		return nil, err
	}
	var kept []netip.Prefix
	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)
	for i := range c.Ranges {
		t, addr, fresh, err := l.of(ctx, i, wanted[i], owner)
		if err != nil {
			return nil, err
		}
		if fresh {
			rb.Push("release "+addr.String(), func(ctx context.Context) error { return l.release(ctx, t, addr) })
		}
		prefix := netip.PrefixFrom(addr, c.Ranges[i].CIDR.Bits())
		kept = append(kept, prefix)
		ip := &types100.IPConfig{Address: ipNet(prefix)}
		if c.Gateway.IsValid() && c.Gateway.Is4() == addr.Is4() {
			ip.Gateway = c.Gateway.AsSlice()
		}
		out.IPs = append(out.IPs, ip)
	}
	if err := l.bind(ctx, owner, kept); err != nil {
		return nil, err
	}
	for _, s := range c.Static {
		ip := &types100.IPConfig{Address: ipNet(s.Prefix)}
		if s.Gateway.IsValid() {
			ip.Gateway = s.Gateway.AsSlice()
		}
		out.IPs = append(out.IPs, ip)
	}
	return cniconf.Convert(out, c.Version)
}

// of takes an address of a range. If the node has got another slice of it, it takes one of that.
func (l *call) of(ctx context.Context, i int, wanted netip.Addr, owner claims.Owner) (t *target, a netip.Addr, fresh bool, err error) {
	for range 2 {
		if t, err = l.target(ctx, i); err != nil {
			return nil, a, false, err
		}
		t.q.Wanted, t.asked = wanted, wanted.IsValid()
		t.keep(owner)
		if a, fresh, err = l.take(ctx, t); !errors.Is(err, storeproc.ErrMoved) {
			return t, a, fresh, err
		}
		_ = os.Remove(t.note)
	}
	return nil, a, false, cnierr.Wrap(cnierr.CodeTryAgain, err, "the slices of nodes change")
}

// hasNothing notes that whereabouts has allocated nothing for the attachment, so that the DEL after an ADD that failed does not ask the
// store for it, or wait for it.
func (l *call) hasNothing(ctx context.Context) {
	if l.c.NodeSliceSize != "" || len(l.c.Ranges) == 0 {
		return
	}
	f, err := l.open(ctx, l.c.Backend, l.c.PoolName("", l.c.Ranges[0].CIDR.String()))
	if err != nil {
		return
	}
	defer f.Close()
	f.Remember(l.a.ContainerID, l.a.IfName)
	_ = f.Save() // without it DEL asks
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// target is a range and its pool.
type target struct {
	index int
	q     claims.Request
	asked bool // the call asks for q.Wanted

	slicePool string // the NodeSlicePool that the range is of, or empty
	slice     string // node and range, and the file that remembers them
	note      string
}

// target returns the pool of a range: that of the range, or that of the node's slice of it.
func (l *call) target(ctx context.Context, i int) (*target, error) {
	q := claims.Request{
		Pool: l.c.PoolName("", l.c.Ranges[i].CIDR.String()), Network: l.c.Network, Range: l.c.Ranges[i],
		BlockSize: l.c.BlockSize, Overlapping: l.c.Overlapping,
	}
	t := &target{index: i, q: q}
	if l.c.NodeSliceSize == "" {
		return t, nil
	}
	return t, l.slice(ctx, i, t)
}

func (l *call) job(t *target) storeproc.Job {
	return storeproc.Job{Config: *l.c, Node: l.node, Request: t.q, ContainerID: l.a.ContainerID, IfName: l.a.IfName, SlicePool: t.slicePool, Slice: t.slice}
}

// maxTakes bounds how often an address that was claimed for this call goes to another call of the node.
const maxTakes = 64

// take gives the attachment an address of the node's file. If there is none, the store is asked first. fresh says that
// the attachment did not have it before.
func (l *call) take(ctx context.Context, t *target) (a netip.Addr, fresh bool, err error) {
	for range maxTakes {
		a, fresh, ok, err := l.takeLocal(ctx, t)
		if ok || err != nil {
			return a, fresh, err
		}
		if err := l.Store.Call(ctx, storeproc.Ensure, l.job(t), nil); err != nil {
			return a, false, l.coded(t, err)
		}
		if err := l.Store.Start(storeproc.Keep, l.job(t)); err != nil {
			l.a.Log.Warn("nothing gives unused addresses of a pool back", log.String("pool", t.q.Pool), log.Error(err))
		}
	}
	return a, false, cnierr.New(cnierr.CodeTryAgain, "pool "+t.q.Pool+": other calls of this node took every address that was claimed", "")
}

func (l *call) takeLocal(ctx context.Context, t *target) (a netip.Addr, fresh, ok bool, err error) {
	open := l.open
	if t.q.Hold != "" || t.q.Wanted.IsValid() { // another attachment may have the address
		open = l.openAll
	}
	f, err := open(ctx, l.c.Backend, t.q.Pool)
	if err != nil {
		return a, false, false, l.stateError(err)
	}
	defer f.Close()
	if !f.Current(l.node) || f.CIDR != t.q.Range.CIDR {
		return a, false, false, nil
	}
	for _, off := range f.Of(l.a.ContainerID, l.a.IfName) {
		if f.Used[off].Range == t.index { // the call is repeated
			a, ok = pool.Addr(f.CIDR, off)
			return a, false, ok, t.mustHave(a, "container "+l.a.ContainerID+" has")
		}
	}
	off, ok := f.Next(&t.q.Range)
	if t.q.Hold != "" {
		if off, ok, err = t.held(f); err != nil {
			return a, false, false, err
		}
	} else if t.q.Wanted.IsValid() {
		off, _ = pool.Offset(f.CIDR, t.q.Wanted)
		if u, used := f.Used[off]; used {
			return a, false, false, cnierr.New(cnierr.CodeConflict, fmt.Sprintf("address %s is taken by container %s interface %s", t.q.Wanted, u.ContainerID, u.IfName), "")
		}
		var claim blocks.Claim
		claim, ok = f.Owns(off)
		ok = ok && claim.Hold == ""
	}
	if !ok {
		return a, false, false, nil
	}
	if a, ok = pool.Addr(f.CIDR, off); !ok {
		return a, false, false, cnierr.New(cnierr.CodeState, fmt.Sprintf("the node's file of pool %s has the offset %d", f.Pool, off), "")
	}
	if err := t.mustHave(a, "for the pod is kept"); err != nil {
		return a, false, false, err
	}
	f.Used[off] = blocks.Use{
		ContainerID: l.a.ContainerID, IfName: l.a.IfName, Network: l.c.Name, Range: t.index, PodRef: l.c.PodRef(),
		PodUID: l.c.PodUID, Fixed: t.q.Wanted.IsValid(), Since: time.Now().Unix(),
	}
	if !t.q.Wanted.IsValid() && t.q.Hold == "" {
		f.Last = off
	}
	l.note("address is taken", f.Pool, a)
	return a, true, true, l.save(f, t)
}

// open opens the file of a pool with what the attachment has. Nothing in it grows with the pods of the node.
func (l *call) open(ctx context.Context, place, poolName string) (*blocks.File, error) {
	return blocks.OpenFor(ctx, l.c.DataDir, place, poolName, l.a.ContainerID, l.a.IfName)
}

// openAll opens the file of a pool with what all attachments have.
func (l *call) openAll(ctx context.Context, place, poolName string) (*blocks.File, error) {
	return blocks.Open(ctx, l.c.DataDir, place, poolName)
}

// note logs what a call does, if the configuration asks for a log. Most do not, and a line costs an ADD a millisecond.
func (l *call) note(what, poolName string, a netip.Addr) {
	if l.c.Logs() {
		l.a.Log.Info(what, log.String("pool", poolName), log.Stringer(log.KeyAddress, a))
	}
}

// mustHave refuses an address that is not the one that the call asks for. what says why the pod would have it.
func (t *target) mustHave(a netip.Addr, what string) error {
	if !t.asked || a == t.q.Wanted {
		return nil
	}
	return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("%s %s, and %s is asked for", what, a, t.q.Wanted), "")
}

// save writes the file and begins upkeep if it is due, but not in a store that the configuration does not name. t is nil if the range is
// not known.
func (l *call) save(f *blocks.File, t *target) error {
	if f.Place != l.c.Backend {
		return f.Save()
	}
	f.Touched = time.Now().UnixMilli()
	now := f.Touched / 1000
	var r *pool.Range
	j := storeproc.Job{Config: *l.c, Node: l.node}
	j.Request = claims.Request{Pool: f.Pool, Network: f.Network, Range: pool.Range{CIDR: f.CIDR}, BlockSize: l.c.BlockSize, Overlapping: l.c.Overlapping}
	j.Request.Range.First, j.Request.Range.Last, _ = pool.Usable(f.CIDR)
	if t != nil {
		r, j.Request = &t.q.Range, t.q
		j.Request.Wanted, j.Request.Hold = netip.Addr{}, ""
	}
	due := f.Current(l.node) && f.Due(r, l.c.BlockSize, now)
	if due {
		f.After = now + upkeepEvery
	}
	if err := f.Save(); err != nil {
		return l.stateError(err)
	}
	if due {
		if err := l.Store.Start(storeproc.Upkeep, j); err != nil {
			l.a.Log.Warn("upkeep of a pool cannot begin", log.String("pool", f.Pool), log.Error(err))
		}
	}
	return nil
}

// upkeepEvery is how often calls begin upkeep, in seconds.
const upkeepEvery = 2

func (l *call) release(ctx context.Context, t *target, a netip.Addr) error {
	f, err := l.open(ctx, l.c.Backend, t.q.Pool)
	if err != nil {
		return err
	}
	defer f.Close()
	if off, ok := pool.Offset(f.CIDR, a); ok && f.Used[off].ContainerID == l.a.ContainerID {
		f.Free(off)
	}
	return l.save(f, t)
}

func (l *call) stateError(err error) error {
	return cnierr.Wrap(cnierr.CodeState, err, "use the addresses of this node in %s", l.c.DataDir)
}

// coded gives an error of the store its code.
func (l *call) coded(t *target, err error) error {
	var coded *cnierr.Error
	what := "kept addresses"
	if t != nil {
		what = "pool " + t.q.Pool
	}
	switch {
	case err == nil || errors.As(err, &coded):
		return err
	case errors.Is(err, storeproc.ErrFull):
		return cnierr.New(cnierr.CodeExhausted, err.Error(), "")
	case errors.Is(err, storeproc.ErrTaken):
		return cnierr.New(cnierr.CodeConflict, err.Error(), "")
	case errors.Is(err, storeproc.ErrMoved):
		return err
	case errors.Is(err, storeproc.ErrHeld):
		return cnierr.New(cnierr.CodeTryAgain, err.Error(), "")
	case errors.Is(err, claims.ErrUnavailable), errors.Is(err, claims.ErrConflict), errors.Is(err, context.DeadlineExceeded):
		return cnierr.Wrap(cnierr.CodeTryAgain, err, "%s: the store is not reached in time", what)
	case errors.Is(err, claims.ErrDenied):
		key, value := "ipam.kubernetes.kubeconfig", any(l.c.Kubeconfig)
		if l.c.Backend == conf.Etcd {
			key, value = "ipam.etcd_host", l.c.Etcd.Endpoints
		}
		return cnierr.Config(key, value, err.Error())
	}
	return cnierr.Wrap(cnierr.CodeState, err, "use %s", what)
}
