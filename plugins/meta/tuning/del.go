// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"slices"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
)

// delConf is what DEL reads of a configuration. The rest may be anything, also what ADD would refuse.
type delConf struct {
	cniconf.Common
	DataDir string `json:"dataDir"`
}

// del restores what ADD found and forgets it. Once the configuration is read it
// does not fail: the namespace is about to go, and an error would keep the
// plugins before this one in the chain from cleaning up.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	var conf delConf
	if err := cniconf.Load(a.StdinData, &conf); err != nil {
		return err
	}
	ref := a.Ref(conf.Name)
	s, found, _ := p.recall(ref)
	prev := string(conf.RawPrevResult)
	if made := prev != "" && prev != "null"; !found && !made && p.Records.Claimed(ref, a.Netns) {
		// The interface, and the backup of that name, are another attachment's. A runtime that passes a result has made this one,
		// under another name of the network.
		return nil
	}
	if s.Backup == "" {
		// Of upstream's plugin, or of an ADD whose record is lost.
		if conf.DataDir == "" {
			conf.DataDir = DefaultDataDir
		}
		s.Backup = backupPath(conf.DataDir, a)
	}
	logged(a.Log, "leave sysctls to other attachments", p.leave(ref, &s))
	p.putBack(ctx, a, ref, s)
	logged(a.Log, "remove the backup file", removeBackup(s.Backup))
	logged(a.Log, "remove the attachment record", p.Records.Remove(ref, Name))
	return nil
}

// leave takes out of s the sysctls that a later attachment of the namespace has set
// too: its value stays, and it has to restore what was there before both.
func (p *plugin) leave(ref attachments.ID, s *section) error {
	if len(s.Sysctl) == 0 {
		return nil
	}
	own, err := p.Records.Load(ref)
	if err != nil {
		return err
	}
	records, err := p.Records.ListOf(ref.ContainerID)
	slices.SortFunc(records, func(x, y *attachments.Record) int { return x.Created.Compare(y.Created) })
	errs := []error{err}
	for _, rec := range records {
		var other section
		if ok, err := rec.Section(Name, &other); !ok || err != nil || other.NetNS != s.NetNS || !rec.Created.After(own.Created) {
			continue
		}
		shared := false
		for path := range other.Sysctl {
			if v, ours := s.Sysctl[path]; ours {
				other.Sysctl[path], shared = v, true
				delete(s.Sysctl, path)
			}
		}
		if shared {
			errs = append(errs, p.Records.Complete(rec.ID, Name, other))
		}
	}
	return errors.Join(errs...)
}

func (p *plugin) putBack(ctx context.Context, a *cniskel.Args, ref attachments.ID, s section) {
	b, exists, err := readBackup(s.Backup)
	logged(a.Log, "read the backup file", err)
	if !exists && len(s.Sysctl) == 0 {
		return
	}
	ns, err := netns.Reopen(s.NetNS, a.Netns)
	logged(a.Log, "open the pod's network namespace", err)
	if ns == nil {
		return // gone, and its settings with it
	}
	defer ns.Close()
	if err := restore(ns, a.IfName, b, s.Sysctl); err != nil {
		a.Log.Warn("restore the settings", log.Error(err))
		return
	}
	if mac, err := net.ParseMAC(b.MAC); err == nil {
		logged(a.Log, "hardware address in the datapath", p.announceMAC(ctx, a, ref, mac, s.held()))
	}
}

// restore gives the link and the sysctls the values they had. It tries all of
// them; a link or parameter that is gone needs nothing.
func restore(ns *netns.NS, ifname string, b backup, sysctls map[string]string) error {
	return ns.Do(func() error {
		errs := []error{restoreLink(ifname, b)}
		for _, path := range slices.SortedFunc(maps.Keys(sysctls), spreadFirst) {
			if err := sysctl.Set(path, sysctls[path]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

func restoreLink(ifname string, b backup) error {
	if b == (backup{}) {
		return nil
	}
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(ifname)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	if b.MTU != 0 {
		errs = append(errs, h.SetMTU(link.Index, b.MTU))
	}
	if mac, err := net.ParseMAC(b.MAC); err == nil {
		errs = append(errs, h.SetMAC(link.Index, mac))
	}
	if b.Promisc != nil {
		errs = append(errs, h.SetPromisc(link.Index, *b.Promisc))
	}
	if b.AllMulti != nil {
		errs = append(errs, h.SetAllMulti(link.Index, *b.AllMulti))
	}
	if b.TxQLen != nil {
		errs = append(errs, h.SetTxQLen(link.Index, *b.TxQLen))
	}
	return errors.Join(errs...)
}

// gc forgets the attachments that the runtime no longer lists. Their namespaces
// are gone or not ours to touch: there is nothing to restore in them.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return gc.Collector{
		Section: Name, List: p.Records.List,
		Detach: func(_ context.Context, _ *cniskel.Args, rec *attachments.Record) error {
			if s, _, _ := p.recall(rec.ID); s.Backup != "" {
				if err := removeBackup(s.Backup); err != nil {
					return cnierr.Wrap(cnierr.CodeState, err, "remove the backup file")
				}
			}
			return cnierr.Wrap(cnierr.CodeState, p.Records.Remove(rec.ID, Name), "remove the attachment record")
		},
	}.GC(ctx, a)
}
