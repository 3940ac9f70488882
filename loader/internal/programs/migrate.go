// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
)

// OldMaps are the maps that had another name in version 1, by that name.
var OldMaps = map[string]string{
	"sl_flows":       pintree.MapConntrack,
	"sl_flows_new":   pintree.MapConntrackUnassured,
	"sl_host_addrs":  pintree.MapNodeAddrs,
	"sl_no_masq":     pintree.MapNoMasqCIDRs,
	"sl_sources":     pintree.MapHostPortAllowlist,
	"sl_ports_kept":  pintree.MapReservedPorts,
	"sl_peers":       pintree.MapSockLBConn,
	"sl_peers_udp":   pintree.MapSockLBUDP,
	"sl_sent":        pintree.MapHostUDP,
	"sl_epoch":       pintree.MapCacheEpoch,
	"sl_remapped":    pintree.MapLastClientPort,
	"sl_policed":     pintree.MapDevicePolicy,
	"sl_own_devices": pintree.MapPodnsDevices,
	"sl_deny":        pintree.MapDenylist,
	"sl_edt_nets":    pintree.MapEDTCIDRs,
	"sl_drops":       pintree.MapDropReasons,
	"sl_dev_drops":   pintree.MapDropsByDevice,
	"sl_events":      pintree.MapDropEvents,
	"sl_event_wish":  pintree.MapEventLease,
	"sl_event_cpu":   pintree.MapEventState,
}

// OldConntrackValue is the size of a value of the conntrack maps in version 1, bytes.
const OldConntrackValue = 144

// DropOldConntrack removes the pins of conntrack maps of version 1, so that the load makes new ones. The old programs keep theirs until
// they are replaced. Connections are learned again then, and masqueraded ones may get another source port.
func (sets Sets) DropOldConntrack() error {
	for _, name := range []string{pintree.MapConntrack, pintree.MapConntrackUnassured} {
		pin := sets.Paths.MapPin(name)
		m, err := bpfsys.OpenMap(pin)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open map %s: %w", name, err)
		}
		size := m.ValueSize()
		if err := m.Close(); err != nil {
			return err
		}
		if size != OldConntrackValue {
			continue
		}
		if err := os.Remove(pin); err != nil {
			return fmt.Errorf("remove map %s of version 1: %w", name, err)
		}
	}
	return nil
}

// OldHooks are the hooks that had another name in the pins of links, by that name.
var OldHooks = map[string]string{
	"pod_egress":  hook.FromPod().Name,
	"pod_ingress": hook.ToPod().Name,
	"upl_ingress": hook.FromUplink().Name,
	"upl_egress":  hook.ToUplink().Name,
}

// OldInSet are what a set of programs had besides programs.
var OldInSet = map[string]string{"drawn": pintree.LoadConstsName, "nosock": pintree.NoSockLBDir}

// nameNow returns what one of names is called now.
func nameNow(names map[string]string, name string) string {
	if now, ok := names[name]; ok {
		return now
	}
	return name
}

// LinkNow returns the name that the pin of a link has now.
func LinkNow(name string) string {
	device, at, found := strings.Cut(name, "_")
	if !found || !strings.HasPrefix(name, "dev") {
		return name
	}
	return device + "_" + nameNow(OldHooks, at)
}

// Migrate gives a pin tree of version 1 the names of this version, if there is one. It takes the writers' lock.
func (sets Sets) Migrate(ctx context.Context) error {
	if !pintree.Exists(sets.Paths.OldDir()) {
		return nil
	}
	unlock, err := sets.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return sets.MigrateLocked()
}

// MigrateLocked is migrate under the writers' lock. The tree of this version begins to count with its set of programs, which comes
// last; the old tree goes after that. So a crash in between leaves one tree that counts, and the next call goes on.
func (sets Sets) MigrateLocked() error {
	old := sets.Paths.OldDir()
	if !pintree.Exists(old) {
		return nil
	}
	if _, ok := sets.Paths.Committed(); !ok {
		if err := adopt(sets.Paths, old); err != nil {
			return fmt.Errorf("rename pins of %s: %w", old, err)
		}
		sets.Log.Info("pins renamed", log.String("from", old), log.String("to", sets.Paths.Dir))
	}
	// Programs first: without them the tree is no datapath.
	if err := errors.Join(os.RemoveAll(filepath.Join(old, "progs")), os.RemoveAll(old)); err != nil {
		return fmt.Errorf("remove pins of %s: %w", old, err)
	}
	_ = os.Remove(filepath.Dir(old)) // only when it is empty: other namespaces may have trees there
	return nil
}

// adopt makes the tree out of the pins of an old one, whose committed set of programs comes last. Without such a set there is nothing
// to adopt: nothing counted on the old tree.
func adopt(p pintree.Paths, old string) error {
	was := pintree.Paths{Dir: old}
	id, ok := was.Committed()
	if !ok {
		return nil
	}
	if err := p.Make(); err != nil {
		return err
	}
	if err := os.RemoveAll(p.FreshDir(id)); err != nil {
		return err
	}
	for _, part := range []struct {
		from, to string
		rename   func(string) string
	}{
		{was.Maps(), p.Maps(), func(name string) string { return nameNow(OldMaps, name) }},
		{was.Links(), p.Links(), LinkNow},
		{was.Clsact(), p.Clsact(), nil},
		{was.EDT(), p.EDT(), nil},
		{filepath.Join(old, "podside"), p.RoutedDevs(), nil},
		{filepath.Join(old, "own"), p.Podns(), nil},
		{was.BuildDir(id), p.FreshDir(id), func(name string) string { return hook.ProgramNow(nameNow(OldInSet, name)) }},
	} {
		if err := linkAll(part.from, part.to, part.rename); err != nil {
			return err
		}
	}
	return pintree.Commit(p.FreshDir(id), p.BuildDir(id))
}

// linkAll gives everything in the directory from a second name in to: pins become hard links, marks are made again. What is there
// already, from a call that was killed, stays.
func linkAll(from, to string, rename func(string) string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if rename != nil {
			name = rename(name)
		}
		if err := linkOne(filepath.Join(from, e.Name()), filepath.Join(to, name), e.Type()); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func linkOne(from, to string, kind fs.FileMode) error {
	switch {
	case kind.IsDir():
		return os.Mkdir(to, 0o700)
	case kind&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	return os.Link(from, to)
}
