// SPDX-License-Identifier: Apache-2.0

// Package masquerade keeps the cluster's networks in nonMasqueradeCIDRs of the node's configuration, and brings them into force.
//
// The file is the administrator's. The package changes one key of it, and removes only what it has added itself. It runs the operator's
// tool for the datapath: the agent links no BPF library.
package masquerade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// resyncTime bounds a run of the tool. A load of the programs takes a second or two.
const resyncTime = time.Minute

// Exempt keeps the exemptions of one node.
type Exempt struct {
	config, state, tool string
	resynced            bool
}

// state is what the agent has added to the node's configuration.
type state struct {
	Added []netip.Prefix `json:"nonMasqueradeCIDRs"`
}

// New returns the exemptions in the file config. state is the package's own note. tool is the path of sluice.
func New(config, state, tool string) *Exempt {
	return &Exempt{config: config, state: state, tool: tool}
}

// Ensure makes wanted part of the file, and removes what an earlier Ensure added and is not wanted any more. After a change, and once
// after each start, it runs "sluice resync --load", so that the first pod finds the programs loaded. A file that cannot be read is a
// *nodeconf.Error, and is left as it is.
func (e *Exempt) Ensure(ctx context.Context, wanted []netip.Prefix) error {
	changed, err := e.write(wanted)
	if err != nil {
		return err
	}
	if changed {
		e.resynced = false
	}
	return e.Resync(ctx)
}

// Look has the next Ensure or Resync run "sluice resync --load", because devices of the node have come or gone. Without it, hostPorts do
// not answer at a new device until the next ADD.
func (e *Exempt) Look() { e.resynced = false }

// Resync runs "sluice resync --load" if it has not since the last change of the file and the last Look. It does not read the file.
func (e *Exempt) Resync(ctx context.Context) error {
	if e.resynced {
		return nil
	}
	if err := e.resync(ctx, "--load"); err != nil {
		return err
	}
	e.resynced = true
	return nil
}

func (e *Exempt) write(wanted []netip.Prefix) (changed bool, err error) {
	raw, err := file.Read(e.config)
	if err != nil {
		return false, err
	}
	conf, err := nodeconf.Parse(raw)
	if err != nil {
		return false, e.named(err)
	}
	before, err := e.added()
	if err != nil {
		return false, err
	}
	keep := slices.DeleteFunc(slices.Clone(conf.NonMasqueradeCIDRs), func(p netip.Prefix) bool { return slices.Contains(before, p) })
	add := slices.DeleteFunc(slices.Clone(wanted), func(p netip.Prefix) bool { return slices.Contains(keep, p) })
	all := slices.Concat(keep, add)
	if slices.Equal(all, conf.NonMasqueradeCIDRs) {
		return false, e.note(add)
	}
	text, err := nodeconf.WithNonMasquerade(raw, all)
	if err != nil {
		return false, e.named(err)
	}
	if _, err := nodeconf.Parse(text); err != nil { // more than 1024 with the administrator's own
		return false, e.named(err)
	}
	// A crash between the two files must not make the agent's networks look like the administrator's. So the note comes first.
	if err := e.note(union(before, add)); err != nil {
		return false, err
	}
	if _, err := file.Update(e.config, text, 0o644); err != nil {
		return false, err
	}
	return true, e.note(add)
}

// named puts the path into an error of the format.
func (e *Exempt) named(err error) error {
	var bad *nodeconf.Error
	if errors.As(err, &bad) {
		bad.File = e.config
	}
	return err
}

func union(a, b []netip.Prefix) []netip.Prefix {
	out := slices.Clone(a)
	for _, p := range b {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func (e *Exempt) added() ([]netip.Prefix, error) {
	raw, err := file.Read(e.state)
	if err != nil || raw == nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it if its networks may stay in %s", e.state, err, e.config)
	}
	return s.Added, nil
}

func (e *Exempt) note(added []netip.Prefix) error {
	if len(added) == 0 {
		return file.Discard(e.state)
	}
	text, err := json.Marshal(state{added})
	if err != nil {
		return err
	}
	_, err = file.Update(e.state, append(text, '\n'), 0o600)
	return err
}

// resync has the datapath read the configuration. With "--load", programs that are not there are loaded; otherwise the first ADD does it.
func (e *Exempt) resync(ctx context.Context, flags ...string) error {
	ctx, cancel := context.WithTimeout(ctx, resyncTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, e.tool, append([]string{"resync"}, flags...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s resync: %w: %s", e.tool, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Remove removes what Ensure has added, and brings that into force.
func (e *Exempt) Remove(ctx context.Context) error {
	changed, err := e.write(nil)
	if err != nil || !changed {
		return err
	}
	return e.resync(ctx)
}
