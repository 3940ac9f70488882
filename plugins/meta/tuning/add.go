// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// found is the state of the pod's namespace before ADD changes it.
type found struct {
	link   rtnl.Link
	backup backup
	sysctl map[string]string
}

func (p *plugin) add(ctx context.Context, a *cniskel.Args) (types.Result, error) {
	w, err := parse(a.StdinData, a.ContainerID, a.CmdArgs.Args, a.IfName)
	if err != nil {
		return nil, err
	}
	if w.prev, err = w.conf.Chained(); err != nil {
		return nil, err
	}
	if err := p.allowed(ctx, w.sysctls); err != nil {
		return nil, err
	}
	result, err := cniconf.Convert(tuned(w.prev, a.IfName, w), w.conf.CNIVersion)
	if err != nil {
		return nil, err
	}
	if !w.link() && len(w.sysctls) == 0 {
		return result, nil
	}
	ns, err := openNS(a.Netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := p.tune(ctx, a, ns, w); err != nil {
		return nil, err
	}
	return result, nil
}

// tune makes w true in ns. On error everything is as it was found.
func (p *plugin) tune(ctx context.Context, a *cniskel.Args, ns *netns.NS, w *wanted) (err error) {
	before, err := look(ns, a.IfName, w)
	if err != nil {
		return err
	}
	ref := a.Ref(w.conf.Name)
	old, again, _ := p.recall(ref)
	if old.NetNS != ns.Inode() {
		old, again = section{}, false // of a pod of that name that has gone
	}
	s := section{NetNS: ns.Inode(), Sysctl: maps.Clone(before.sysctl)}
	for path, v := range old.Sysctl {
		s.Sysctl[path] = v // of before the first ADD
	}
	if w.mac != nil {
		s.Addrs = loader.HeldBy(cniconf.PodAddrs(w.prev, a.IfName)).Addrs
		if before.link.Kind == "veth" {
			s.HostIfindex = before.link.PeerIndex
		}
	}
	if w.link() {
		s.Backup = backupPath(w.dataDir, a)
	} else {
		s.Backup = old.Backup
	}

	var rb rollback.Stack
	defer rb.Rollback(ctx, &err)
	if err := p.Records.Begin(ref, a.Netns, Name, s); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "record the attachment")
	}
	if !again {
		rb.Push("attachment record", func(context.Context) error { return p.Records.Remove(ref, Name) })
	}
	if w.link() {
		if err := p.backUp(s.Backup, before, w, again, &rb); err != nil {
			return err
		}
	}
	// What is undone is this ADD, not an earlier one that succeeded.
	rb.Push("settings", func(context.Context) error {
		return restore(ns, a.IfName, before.backup, before.sysctl)
	})
	if err := ns.Do(func() error { return apply(a.IfName, w) }); err != nil {
		return err
	}
	if err := p.announce(ctx, a, ref, w, before, s.held(), &rb); err != nil {
		return err
	}
	return cnierr.Wrap(cnierr.CodeState, p.Records.Complete(ref, Name, s), "complete the attachment record")
}

// backUp writes the backup file. What a file of an earlier ADD in this namespace
// says stays (again). Without a record the file may be upstream's plugin's,
// of this pod or of one that has gone: a value of it counts when the link has
// the wanted value already, as it has after an ADD.
func (p *plugin) backUp(file string, before *found, w *wanted, again bool, rb *rollback.Stack) error {
	b := before.backup
	old, exists, err := readBackup(file)
	exists = exists && err == nil
	if exists {
		b.keep(old, func(tuned bool) bool { return again || tuned }, before.link, w)
	}
	if err := writeBackup(file, b); err != nil {
		return cnierr.Wrap(cnierr.CodeIO, err, "write the backup of the link settings to dataDir %q", w.dataDir)
	}
	rb.Push("backup file", func(context.Context) error {
		if exists {
			return writeBackup(file, old)
		}
		return removeBackup(file)
	})
	return nil
}

func (p *plugin) announce(ctx context.Context, a *cniskel.Args, ref attachments.ID, w *wanted, before *found, held loader.Held, rb *rollback.Stack) error {
	if w.mac == nil {
		return nil
	}
	rb.Push("hardware address in the datapath", func(ctx context.Context) error {
		return p.announceMAC(ctx, a, ref, before.link.MAC, held)
	})
	return p.announceMAC(ctx, a, ref, w.mac, held)
}

func openNS(path string) (*netns.NS, error) {
	ns, err := netns.Open(path)
	return ns, cnierr.Wrap(cnierr.CodeNetNS, err, "open CNI_NETNS %q", path)
}

// look reads what is there, and finds what cannot be changed before anything is.
func look(ns *netns.NS, ifname string, w *wanted) (*found, error) {
	f := &found{sysctl: map[string]string{}}
	err := ns.Do(func() error {
		if w.link() {
			h, err := rtnl.New()
			if err != nil {
				return cnierr.Wrap(cnierr.CodeKernel, err, "open netlink")
			}
			defer h.Close()
			if f.link, err = h.LinkByName(ifname); err != nil {
				return cnierr.Wrap(cnierr.CodeKernel, err, "find interface %s", ifname)
			}
			f.backup = backupOf(f.link, w)
		}
		for _, s := range w.sysctls {
			v, err := sysctl.Get(s.path)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return cnierr.Config("sysctl", s.given, "this kernel has no such parameter in the pod's network namespace")
			case errors.Is(err, fs.ErrPermission):
				continue // write-only: nothing to restore
			case err != nil:
				return cnierr.Wrap(cnierr.CodeKernel, err, "sysctl %q", s.given)
			}
			f.sysctl[s.path] = v
			if err := noteDevices(s.path, f.sysctl); err != nil {
				return cnierr.Wrap(cnierr.CodeKernel, err, "sysctl %q: read it of each device", s.given)
			}
		}
		return nil
	})
	return f, err
}

// apply runs inside the pod's namespace. The order of the link settings is upstream's.
func apply(ifname string, w *wanted) error {
	for _, s := range w.sysctls {
		if err := sysctl.Apply(s.path, s.value); err != nil {
			return cnierr.Wrap(cnierr.CodeConfig, err, "sysctl %q: the kernel does not take the value %q", s.given, s.value)
		}
	}
	if !w.link() {
		return nil
	}
	h, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open netlink")
	}
	defer h.Close()
	link, err := h.LinkByName(ifname)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "find interface %s", ifname)
	}
	set := func(what string, err error) error {
		return cnierr.Wrap(cnierr.CodeKernel, err, "set %s of %s", what, ifname)
	}
	if w.mac != nil {
		if err := set(fmt.Sprintf("mac %s", w.mac), h.SetMAC(link.Index, w.mac)); err != nil {
			return err
		}
	}
	if w.promisc {
		if err := set("promisc", h.SetPromisc(link.Index, true)); err != nil {
			return err
		}
	}
	if w.mtu != 0 {
		if err := set(fmt.Sprintf("mtu %d", w.mtu), h.SetMTU(link.Index, w.mtu)); err != nil {
			return err
		}
	}
	if w.allMulti != nil {
		if err := set("allmulti", h.SetAllMulti(link.Index, *w.allMulti)); err != nil {
			return err
		}
	}
	if w.txQLen != nil {
		return set(fmt.Sprintf("txQLen %d", *w.txQLen), h.SetTxQLen(link.Index, *w.txQLen))
	}
	return nil
}

// tuned is the previous result with what changes of the pod's interface: of every
// interface of that name, since not every plugin says which one is in the pod.
func tuned(prev *types100.Result, ifname string, w *wanted) *types100.Result {
	out := *prev
	out.Interfaces = nil
	for _, i := range prev.Interfaces {
		c := *i
		if c.Name == ifname {
			if w.mac != nil {
				c.Mac = w.mac.String()
			}
			if w.mtu != 0 && c.Mtu != 0 {
				c.Mtu = w.mtu
			}
		}
		out.Interfaces = append(out.Interfaces, &c)
	}
	return &out
}
