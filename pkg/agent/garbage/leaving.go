// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
)

// Leaving does what the runtime's DEL would, on a node that leaves the network: a runtime that has no network any more makes no DEL, and
// one that has another network asks that network's plugins.
type Leaving struct {
	Network   string
	CacheDir  string // libcni's
	Plugins   func() (dirs []string, err error)
	Records   *attachments.Dir
	Sandboxes Sandboxes
	// GC is the network's configuration for attachments that libcni has no note of.
	GC  *libcni.NetworkConfigList
	Log *log.Logger
}

// found is an attachment of the node: what libcni has kept of it, if that is there, and where its pod is.
type found struct {
	netns  string
	cached *libcni.NetworkAttachment
}

// Sweep removes the attachments whose network namespace is gone, with their addresses, and returns the others. They are those that a plugin
// of Sluice has a record of, of whatever network, and those of the agent's own network.
func (l *Leaving) Sweep(ctx context.Context) (living []attachments.ID, err error) {
	all, err := l.attachments()
	if err != nil {
		return nil, err
	}
	var dead []*libcni.NetworkAttachment
	var errs []error
	noted := len(all) == 0 && l.held()
	for _, id := range slices.SortedFunc(maps.Keys(all), func(a, b attachments.ID) int { return strings.Compare(a.String(), b.String()) }) {
		alive, err := l.alive(ctx, id, all[id].netns)
		errs = append(errs, err)
		switch cached := all[id].cached; {
		case alive:
			living = append(living, id)
		case cached != nil:
			dead = append(dead, cached)
		case id.Network == l.Network:
			noted = true
		}
	}
	if len(dead) > 0 || noted {
		errs = append(errs, l.remove(ctx, dead, noted, living))
	}
	return living, errors.Join(errs...)
}

// remove makes the DEL of the dead, and the GC if noted says that there are attachments without libcni's note.
func (l *Leaving) remove(ctx context.Context, dead []*libcni.NetworkAttachment, noted bool, living []attachments.ID) error {
	dirs, err := l.Plugins()
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfigWithCacheDir(dirs, l.CacheDir, nil)
	c := &Collector{CacheDir: l.CacheDir}
	var errs []error
	for _, a := range dead {
		if err := c.del(ctx, cni, a, false); err != nil {
			errs = append(errs, fmt.Errorf("%s of %s: %w", a.ContainerID, a.Network, err))
			continue
		}
		l.Log.Info("removed an attachment without a pod", log.String(log.KeyContainerID, a.ContainerID), log.String(log.KeyNetwork, a.Network))
	}
	if noted {
		errs = append(errs, l.collect(ctx, cni, living))
	}
	return errors.Join(errs...)
}

func (l *Leaving) attachments() (map[attachments.ID]found, error) {
	records, err := l.Records.List("")
	if err != nil {
		return nil, err
	}
	all := make(map[attachments.ID]found, len(records))
	for _, r := range records {
		all[r.ID] = found{netns: r.NetNS}
	}
	cached, err := libcni.NewCNIConfigWithCacheDir(nil, l.CacheDir, nil).GetCachedAttachments("")
	if err != nil {
		return nil, fmt.Errorf("read what libcni has kept: %w", err)
	}
	for _, a := range cached {
		id := attachments.ID{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
		if f, recorded := all[id]; recorded || a.Network == l.Network {
			f.cached = a
			if f.netns == "" {
				f.netns = a.NetNS
			}
			all[id] = f
		}
	}
	return all, nil
}

// alive says that the pod's network namespace may exist. A path of a process means nothing in another PID namespace, so the runtime is asked.
func (l *Leaving) alive(ctx context.Context, id attachments.ID, netns string) (bool, error) {
	if strings.HasPrefix(netns, "/proc/") {
		sandboxes, err := l.Sandboxes(ctx)
		if err != nil {
			return true, fmt.Errorf("%s: ask the runtime: %w", id, err)
		}
		return sandboxes[id.ContainerID], nil
	}
	_, err := os.Stat(netns)
	return err == nil || !errors.Is(err, os.ErrNotExist), nil
}

// held says that addresses of the network are taken.
func (l *Leaving) held() bool {
	taken, err := os.ReadDir(filepath.Join(l.CacheDir, "networks", l.Network))
	return err == nil && slices.ContainsFunc(taken, func(e os.DirEntry) bool { return strings.Trim(e.Name(), "0123456789abcdef.:_") == "" })
}

// collect has the plugins remove by their own records what they have made for other attachments than the living.
func (l *Leaving) collect(ctx context.Context, cni *libcni.CNIConfig, living []attachments.ID) error {
	valid := []types.GCAttachment{}
	for _, id := range living {
		if id.Network == l.Network {
			valid = append(valid, types.GCAttachment{ContainerID: id.ContainerID, IfName: id.IfName})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, delTime)
	defer cancel()
	return cni.GCNetworkList(ctx, l.GC, &libcni.GCArgs{ValidAttachments: valid})
}
