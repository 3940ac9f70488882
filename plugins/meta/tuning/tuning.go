// SPDX-License-Identifier: Apache-2.0

// Package tuning is the chained plugin that sets sysctls and link settings
// inside the pod's network namespace. It owns the backup file in its dataDir (in
// upstream's format, so that a node can be switched with pods running) and
// its section of the attachment record, by which DEL restores what ADD found,
// sysctls included.
package tuning

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/sysctlallow"
	"github.com/sluice-cni/sluice/pkg/version"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "tuning"

// Defaults of the node.
const (
	DefaultDataDir   = "/run/cni/tuning"
	DefaultAllowlist = "/etc/cni/tuning/allowlist.conf"
)

// Deps are the plugin's ways to the world.
type Deps struct {
	Records *attachments.Dir
	// OpenExisting never loads: loader.ErrNotLoaded when nothing is.
	OpenExisting func(ctx context.Context, a *cniskel.Args) (loader.Interface, error)
	// Allowlist is the file of permitted sysctls; empty means DefaultAllowlist.
	Allowlist string
	// Match matches its expressions.
	Match sysctlallow.Matcher
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	if d.Allowlist == "" {
		d.Allowlist = DefaultAllowlist
	}
	p := &plugin{d}
	return &cniskel.Plugin{
		Name:     Name,
		Usage:    version.About(Name),
		Versions: version.All(),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       p.gc,
		Status:   p.status,
	}
}

// section is what an attachment record holds of this plugin. Its JSON is read
// by later versions.
type section struct {
	// NetNS is the inode of the namespace: the path, or the container's name,
	// may come back with another one.
	NetNS uint64 `json:"netnsInode,omitempty"`
	// Backup is the file with the link settings that ADD found, "" for none.
	Backup string `json:"backup,omitempty"`
	// Sysctl holds the values that ADD found, by path below /proc/sys.
	Sysctl map[string]string `json:"sysctl,omitempty"`
	// HostIfindex and Addrs say where the datapath has the pod's MAC, if ADD set one. Records of builds before it have none.
	HostIfindex int          `json:"hostIfindex,omitempty"`
	Addrs       []netip.Addr `json:"addrs,omitempty"`
}

// held is what the datapath holds of the attachment.
func (s *section) held() loader.Held { return loader.Held{Addrs: s.Addrs, HostIfindex: s.HostIfindex} }

// recall returns the section of an earlier ADD of the same attachment.
func (p *plugin) recall(ref attachments.ID) (s section, found bool, path string) {
	return attachments.ReadSection[section](p.Records, ref, Name)
}

// announceMAC tells the datapath, where one is loaded, the pod's address: what the pod sends from another one counts as spoofed.
func (p *plugin) announceMAC(ctx context.Context, a *cniskel.Args, ref attachments.ID, mac net.HardwareAddr, held loader.Held) error {
	if p.OpenExisting == nil {
		return nil
	}
	dp, err := p.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) || errors.Is(err, loader.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "open the datapath")
	}
	defer dp.Close()
	return cnierr.Wrap(cnierr.CodeKernel, dp.SetMAC(ctx, ref.Owner(), mac, held), "tell the datapath the hardware address %s", mac)
}

// logged is for DEL, which must not fail: what cannot be restored is said.
func logged(l *log.Logger, what string, err error) {
	if err != nil {
		l.Warn(what, log.Error(err))
	}
}
