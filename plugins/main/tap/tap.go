// SPDX-License-Identifier: Apache-2.0

// Package tap is the main plugin that makes a tap device in a pod, for a
// program there that wants to be the other end of an interface: a virtual
// machine, above all.
//
// It owns the device, which ends with the pod's network namespace, and the
// section "tap" of the attachment record.
package tap

import (
	"encoding/json"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "tap"

// SELinux runs a command under a label of its own.
type SELinux interface {
	// Enabled reports that the kernel enforces or logs SELinux rules.
	Enabled() bool
	// Run runs argv with the label, in the calling thread's namespaces, and
	// returns its stderr with the error.
	Run(label string, argv []string) error
}

// Deps are the plugin's dependencies. SELinux may be nil: the kernel's.
type Deps struct {
	IPAM    ipam.Plugin
	Records *attachments.Dir
	SELinux SELinux
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	if d.SELinux == nil {
		d.SELinux = kernelLabels{}
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
	NetNS uint64          `json:"netnsInode,omitempty"` // a path may name another namespace later
	IPAM  json.RawMessage `json:"ipam,omitempty"`       // the configuration's, for a DEL that comes without one
}
