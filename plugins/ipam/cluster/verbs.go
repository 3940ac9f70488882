// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/storeproc"
)

// places are the kinds of stores: a DEL whose configuration is broken looks at the files of all.
var places = []string{conf.Kubernetes, conf.Etcd}

// del releases every address of the attachment, in every pool of the node: ranges that have changed or are wrong by now
// hide nothing. It needs the store only for an attachment that whereabouts made, and then notes what the store has to do.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, confErr := conf.Load(a)
	if c == nil {
		return confErr
	}
	l := p.call(c, a)
	found := false
	err := l.eachPool(func(place, name string) error {
		had, err := l.delIn(ctx, place, name)
		found = found || had
		return err
	})
	if err != nil || found {
		return err
	}
	if confErr != nil {
		a.Log.Warn("the configuration is not valid, and no address of the attachment is known here", log.Error(confErr))
		return nil
	}
	for i := range c.Ranges {
		t, err := l.target(ctx, i)
		if err == nil {
			err = l.forget(ctx, t)
		}
		if err != nil { // "sluice ipam check" finds what is not noted
			a.Log.Error("an address that whereabouts allocated is not released", log.String("pool", c.PoolName("", c.Ranges[i].CIDR.String())), log.Error(err))
		}
	}
	return nil
}

// eachPool does something for each pool that the node has a file of, whichever the store.
func (l *call) eachPool(do func(place, name string) error) error {
	var errs []error
	for _, place := range places {
		names, err := blocks.Pools(l.c.DataDir, place)
		errs = append(errs, err)
		for _, name := range names {
			errs = append(errs, do(place, name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return l.stateError(err)
	}
	return nil
}

// forget has the store release what whereabouts allocated for the attachment. The node's file has that first, so it is done later if the
// store does not answer now. Of calls at a time one goes after the other, and the first has the store release what all of
// them have noted.
func (l *call) forget(ctx context.Context, t *target) error {
	owed := blocks.Owed{ContainerID: l.a.ContainerID, IfName: l.a.IfName}
	f, err := l.open(ctx, l.c.Backend, t.q.Pool)
	if err != nil {
		return err
	}
	f.Owe(owed, t.q.Range.CIDR, t.q.Network)
	err = f.SaveDurably()
	f.Close()
	if err != nil {
		return err
	}
	lock, err := file.AcquireLock(ctx, filepath.Join(l.c.DataDir, l.c.Backend, t.q.Pool+".forget"))
	if err == nil {
		err = l.forgetNoted(ctx, t, owed)
		_ = lock.Close()
	}
	if err != nil {
		return errors.Join(err, l.Store.Start(storeproc.Keep, l.job(t)))
	}
	return nil
}

// forgetNoted is forget for the call that has the lock. It returns an error if the release stays noted.
func (l *call) forgetNoted(ctx context.Context, t *target, owed blocks.Owed) error {
	f, err := l.open(ctx, l.c.Backend, t.q.Pool)
	if err != nil {
		return err
	}
	waits, failed := slices.Contains(f.Owed, owed), f.Fails > 0 && time.Now().Unix() < f.After
	f.Close()
	switch {
	case !waits:
		return nil
	case failed: // a moment ago: each of many calls would wait for it
		return claims.ErrUnavailable
	}
	return l.Store.Call(ctx, storeproc.Forget, l.job(t), nil)
}

// delIn releases what the attachment has in a pool. It reports true also for one that was released before.
func (l *call) delIn(ctx context.Context, place, name string) (bool, error) {
	f, err := l.open(ctx, place, name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, off := range f.Of(l.a.ContainerID, l.a.IfName) {
		a, _ := pool.Addr(f.CIDR, off)
		l.note("address is released", name, a)
	}
	if !f.Release(l.a.ContainerID, l.a.IfName) {
		if f.Idle() { // of an ADD that was killed
			err = l.save(f, l.known(name))
		}
		return f.Released(l.a.ContainerID, l.a.IfName), err
	}
	return true, l.save(f, l.known(name))
}

// known returns the target of a pool if a range of the configuration has it.
func (l *call) known(name string) *target {
	for i, r := range l.c.Ranges {
		if l.c.NodeSliceSize == "" && l.c.PoolName("", r.CIDR.String()) == name {
			t, err := l.target(context.Background(), i)
			if err == nil {
				return t
			}
		}
	}
	return nil
}

// check compares the node's file with prevResult: the attachment must have an address of each range, and every address
// of prevResult in the ranges must be its own.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	c, err := conf.Load(a)
	if err != nil {
		return err
	}
	l := p.call(c, a)
	prev, err := cniconf.PrevResult(a.StdinData, c.Version)
	if err != nil {
		return err
	}
	for i := range c.Ranges {
		t, err := l.target(ctx, i)
		if err != nil {
			return err
		}
		if err := l.checkRange(ctx, t, prev); err != nil {
			return err
		}
	}
	return nil
}

func (l *call) checkRange(ctx context.Context, t *target, prev *types100.Result) error {
	f, err := l.open(ctx, l.c.Backend, t.q.Pool)
	if err != nil {
		return l.stateError(err)
	}
	var have []uint64
	if f.Current(l.node) {
		have = f.Of(l.a.ContainerID, l.a.IfName)
	}
	for _, off := range have {
		if _, ok := f.Owns(off); !ok {
			addr, _ := pool.Addr(t.q.Range.CIDR, off)
			f.Close()
			return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("pool %s has address %s for another by now", t.q.Pool, addr), "")
		}
	}
	f.Close()
	if len(have) == 0 { // whereabouts may have made the attachment
		if err := l.Store.Call(ctx, storeproc.Of, l.job(t), &have); err != nil {
			return l.coded(t, err)
		}
	}
	own := map[netip.Addr]bool{}
	for _, off := range have {
		addr, _ := pool.Addr(t.q.Range.CIDR, off)
		own[addr] = true
	}
	if len(own) == 0 {
		return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("no address of pool %s is reserved for container %s interface %s", t.q.Pool, l.a.ContainerID, l.a.IfName), "")
	}
	if prev == nil {
		return nil
	}
	found := false
	for _, ip := range prev.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		addr = addr.Unmap()
		found = found || own[addr]
	}
	if !found {
		return cnierr.New(cnierr.CodeCheck, fmt.Sprintf("prevResult has none of the addresses that pool %s has for the attachment", t.q.Pool), "")
	}
	return nil
}

// gc releases every address of this network whose attachment is not in the list.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	valid, err := cniconf.ValidAttachments(a.StdinData)
	if err != nil {
		return err
	}
	c, err := conf.Load(a)
	if c == nil {
		return err
	}
	l := p.call(c, a)
	keep := map[[2]string]bool{}
	for _, v := range valid {
		keep[[2]string{v.ContainerID, v.IfName}] = true
	}
	return l.eachPool(func(place, name string) error { return l.gcIn(ctx, place, name, keep) })
}

func (l *call) gcIn(ctx context.Context, place, name string, keep map[[2]string]bool) error {
	f, err := l.openAll(ctx, place, name)
	if err != nil {
		return err
	}
	defer f.Close()
	released := false
	for off, u := range f.Used {
		if u.Network != l.c.Name || keep[[2]string{u.ContainerID, u.IfName}] {
			continue
		}
		addr, _ := pool.Addr(f.CIDR, off)
		l.a.Log.Info("released by GC", log.Stringer(log.KeyAddress, addr), log.String(log.KeyOwner, u.ContainerID))
		released = f.Release(u.ContainerID, u.IfName) || released
	}
	if !released {
		return nil
	}
	return l.save(f, l.known(name))
}

// status says whether an ADD would find an address here, or a store to ask for one. A full pool is no error: see
// docs/dev/adr/0031-status-of-a-full-pool.md.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	c, err := conf.Load(a)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
	}
	l := p.call(c, a)
	for i := range c.Ranges {
		t, err := l.target(ctx, i)
		if err == nil {
			var has bool
			if has, err = l.hasSpare(ctx, t); err == nil && !has {
				err = l.coded(t, l.Store.Call(ctx, storeproc.Ping, l.job(t), nil))
			}
		}
		if err != nil {
			return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
		}
	}
	return nil
}

func (l *call) hasSpare(ctx context.Context, t *target) (bool, error) {
	f, err := l.open(ctx, l.c.Backend, t.q.Pool)
	if err != nil {
		return false, l.stateError(err)
	}
	defer f.Close()
	return f.Current(l.node) && len(f.Spare(&t.q.Range)) > 0, nil
}

// slice narrows a target to the slice that the node has of the range. The node remembers it while it runs; the store
// program reads it again whenever it is asked for addresses.
func (l *call) slice(ctx context.Context, i int, t *target) error {
	q := &t.q
	name := l.c.Network
	if name == "" {
		name = l.c.Name
	}
	if name == "" || strings.ContainsRune(name, '/') {
		return cnierr.Config("name", name, "not the name of a NodeSlicePool")
	}
	note := filepath.Join(l.c.DataDir, l.c.Backend, name+".slice")
	stamp := strings.Join([]string{l.node.Boot, l.c.Ranges[i].CIDR.String(), l.c.NodeSliceSize}, " ")
	text, _ := os.ReadFile(note)
	line := strings.TrimSpace(string(text))
	rest, ok := strings.CutPrefix(line, stamp+" ")
	if !ok {
		j := l.job(t)
		j.SlicePool = name
		if err := l.Store.Call(ctx, storeproc.Slice, j, &rest); err != nil {
			return l.coded(t, err)
		}
		if err := os.MkdirAll(filepath.Dir(note), 0o700); err == nil {
			_ = os.WriteFile(note, []byte(stamp+" "+rest+"\n"), 0o600)
		}
	}
	node, cidr, _ := strings.Cut(rest, " ")
	p, err := netip.ParsePrefix(cidr)
	if err != nil || !q.Range.CIDR.Overlaps(p) || p.Bits() < q.Range.CIDR.Bits() {
		return cnierr.New(cnierr.CodeState, fmt.Sprintf("NodeSlicePool %s: %q is no slice of %s", name, cidr, q.Range.CIDR), "")
	}
	first, last, ok := pool.Usable(p)
	if !ok {
		return cnierr.Config("ipam.node_slice_size", l.c.NodeSliceSize, "a slice has no usable address")
	}
	t.slicePool, t.slice, t.note = name, rest, note
	q.Pool, q.Range.CIDR, q.Range.First, q.Range.Last = l.c.PoolName(node, cidr), p.Masked(), first, last
	return nil
}
