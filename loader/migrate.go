// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
)

// Pin trees of version 1 differ from this one in names, and in the values of the conntrack maps: sluice/v1/<ns> had other names for
// most maps, programs, links and marks. The keys and values of all other maps have the same bytes. So a datapath that was loaded by such a release is not loaded anew beside the old
// one, which would translate packets twice. Its objects get pins with the new names, and the next Open replaces the programs in
// place, as after any other change of the build.
const oldPinVersion = 1

// oldMaps are the maps that had another name in version 1, by that name.
var oldMaps = map[string]string{
	"sl_flows":       mapConntrack,
	"sl_flows_new":   mapConntrackUnassured,
	"sl_host_addrs":  mapNodeAddrs,
	"sl_no_masq":     mapNoMasqCIDRs,
	"sl_sources":     mapHostPortAllowlist,
	"sl_ports_kept":  mapReservedPorts,
	"sl_peers":       mapSockLBConn,
	"sl_peers_udp":   mapSockLBUDP,
	"sl_sent":        mapHostUDP,
	"sl_epoch":       mapCacheEpoch,
	"sl_remapped":    mapLastClientPort,
	"sl_policed":     mapDevicePolicy,
	"sl_own_devices": mapPodnsDevices,
	"sl_deny":        mapDenylist,
	"sl_edt_nets":    mapEDTCIDRs,
	"sl_drops":       mapDropReasons,
	"sl_dev_drops":   mapDropsByDevice,
	"sl_events":      mapDropEvents,
	"sl_event_wish":  mapEventLease,
	"sl_event_cpu":   mapEventState,
}

// oldConntrackValue is the size of a value of the conntrack maps in version 1, bytes.
const oldConntrackValue = 144

// dropOldConntrack removes the pins of conntrack maps of version 1, so that the load makes new ones. The old programs keep theirs until
// they are replaced. Connections are learned again then, and masqueraded ones may get another source port.
func (d *Datapath) dropOldConntrack() error {
	for _, name := range []string{mapConntrack, mapConntrackUnassured} {
		pin := d.paths.mapPin(name)
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
		if size != oldConntrackValue {
			continue
		}
		if err := os.Remove(pin); err != nil {
			return fmt.Errorf("remove map %s of version 1: %w", name, err)
		}
	}
	return nil
}

// oldPrograms are the programs that had another name in version 1, by that name. Filters carry it too.
var oldPrograms = map[string]hook{
	"sl_pod_egress":  hookFromPod(),
	"sl_pod_ingress": hookToPod(),
	"sl_upl_ingress": hookFromUplink(),
	"sl_upl_egress":  hookToUplink(),
	"sl_upl_in_bare": hookFromL3Uplink(),
	"sl_upl_eg_bare": hookToL3Uplink(),
	"sl_own_egress":  hookNsEgress(),
	"sl_own_ingress": hookNsIngress(),
	"sl_xdp_uplink":  hookXDP(),
}

// oldHooks are the hooks that had another name in the pins of links, by that name.
var oldHooks = map[string]string{
	"pod_egress":  hookFromPod().name,
	"pod_ingress": hookToPod().name,
	"upl_ingress": hookFromUplink().name,
	"upl_egress":  hookToUplink().name,
}

// oldInSet are what a set of programs had besides programs.
var oldInSet = map[string]string{"drawn": loadConstsName, "nosock": noSockLBDir}

// programNow returns the name that a program has now.
func programNow(name string) string {
	if h, ok := oldPrograms[name]; ok {
		return h.program
	}
	return name
}

// nameNow returns what one of names is called now.
func nameNow(names map[string]string, name string) string {
	if now, ok := names[name]; ok {
		return now
	}
	return name
}

// linkNow returns the name that the pin of a link has now.
func linkNow(name string) string {
	device, hook, found := strings.Cut(name, "_")
	if !found || !strings.HasPrefix(name, "dev") {
		return name
	}
	return device + "_" + nameNow(oldHooks, hook)
}

// migrate gives a pin tree of version 1 the names of this version, if there is one. It takes the writers' lock.
func (d *Datapath) migrate(ctx context.Context) error {
	if !exists(d.paths.oldDir()) {
		return nil
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return d.migrateLocked()
}

// migrateLocked is migrate under the writers' lock. The tree of this version begins to count with its set of programs, which comes
// last; the old tree goes after that. So a crash in between leaves one tree that counts, and the next call goes on.
func (d *Datapath) migrateLocked() error {
	old := d.paths.oldDir()
	if !exists(old) {
		return nil
	}
	if _, ok := d.paths.committed(); !ok {
		if err := d.paths.adopt(old); err != nil {
			return fmt.Errorf("rename pins of %s: %w", old, err)
		}
		d.log.Info("pins renamed", log.String("from", old), log.String("to", d.paths.dir))
	}
	// Programs first: without them the tree is no datapath.
	if err := errors.Join(os.RemoveAll(filepath.Join(old, "progs")), os.RemoveAll(old)); err != nil {
		return fmt.Errorf("remove pins of %s: %w", old, err)
	}
	_ = os.Remove(filepath.Dir(old)) // only when it is empty: other namespaces may have trees there
	return nil
}

// oldDir is where version 1 has the pins of this network namespace.
func (p paths) oldDir() string {
	base := filepath.Dir(filepath.Dir(p.dir))
	return filepath.Join(base, "v"+strconv.Itoa(oldPinVersion), filepath.Base(p.dir))
}

// adopt makes the tree out of the pins of an old one, whose committed set of programs comes last. Without such a set there is nothing
// to adopt: nothing counted on the old tree.
func (p paths) adopt(old string) error {
	was := paths{dir: old}
	id, ok := was.committed()
	if !ok {
		return nil
	}
	if err := p.make(); err != nil {
		return err
	}
	if err := os.RemoveAll(p.freshDir(id)); err != nil {
		return err
	}
	for _, part := range []struct {
		from, to string
		rename   func(string) string
	}{
		{was.maps(), p.maps(), func(name string) string { return nameNow(oldMaps, name) }},
		{was.links(), p.links(), linkNow},
		{was.clsact(), p.clsact(), nil},
		{was.edt(), p.edt(), nil},
		{filepath.Join(old, "podside"), p.routedDevs(), nil},
		{filepath.Join(old, "own"), p.podns(), nil},
		{was.buildDir(id), p.freshDir(id), func(name string) string { return programNow(nameNow(oldInSet, name)) }},
	} {
		if err := linkAll(part.from, part.to, part.rename); err != nil {
			return err
		}
	}
	return commit(p.freshDir(id), p.buildDir(id))
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
