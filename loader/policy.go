// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/attachments"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// policyMaps are the views of the firewall's maps.
type policyMaps struct {
	rules   policymap.Map
	devices policymap.Devices
}

func (d *Datapath) policyMaps() (policyMaps, error) {
	rm, err := d.tree.Pinned(pintree.MapPolicies)
	if err != nil {
		return policyMaps{}, err
	}
	dm, err := d.tree.Pinned(pintree.MapDevicePolicy)
	return policyMaps{policymap.New(rm), policymap.NewDevices(dm)}, err
}

// id returns the id of p's rules in the map, where it puts them unless they are there; 0 for a policy that restricts nothing. An id
// follows from the rules: a flow that remembers one of a policy that has gone meets the same rules under it, or hardly ever others.
//
// A policy stays in the map when the last device leaves it: to know that would take a walk over all devices. It goes with GC, or when
// the map has no room, so that a verb pays for a walk once in as many new policies as fit.
func (v policyMaps) id(p *policy.Policy, back *rollback.Stack) (uint16, error) {
	if p.Empty() {
		return 0, nil
	}
	want, err := policymap.FromPolicy(p)
	if err != nil {
		return 0, err
	}
	id, err := v.put(want, back)
	if errors.Is(err, unix.E2BIG) {
		if err := v.forget(); err != nil {
			return 0, err
		}
		id, err = v.put(want, back)
	}
	if err != nil {
		return 0, pintree.WrapFull(pintree.MapPolicies, err)
	}
	return id, nil
}

// put returns the id of want, which is in the map then.
func (v policyMaps) put(want *policymap.Value, back *rollback.Stack) (uint16, error) {
	id, there, err := v.rules.Place(want)
	if there || err != nil {
		return id, err
	}
	back.Push("policy", func(context.Context) error { return v.rules.Delete(id) })
	return id, v.rules.Put(id, want)
}

// applyPolicy puts the device under key under the policy p of ref, and returns the policy's id. group is the device that its packets are
// routed from; 0 inside a pod.
func (d *Datapath) applyPolicy(key uint32, ref attachments.ID, group uint32, p *policy.Policy, back *rollback.Stack) (uint16, error) {
	v, err := d.policyMaps()
	if err != nil {
		return 0, err
	}
	id, err := v.id(p, back)
	if err != nil {
		return 0, fmt.Errorf("policy of %s: %w", ref, err)
	}
	return id, v.police(key, ref.Owner(), group, id, p, back)
}

// releasePolicy takes the device under key of owner from its policy.
func (d *Datapath) releasePolicy(key uint32, owner uint64) error {
	v, err := d.policyMaps()
	if err != nil {
		return pintree.IgnoreNotLoaded(err)
	}
	return v.release(key, owner)
}

// dropPolicy takes the device under key from its policy, whosever it is.
func (d *Datapath) dropPolicy(key uint32) error {
	v, err := d.policyMaps()
	if err != nil {
		return err
	}
	return v.devices.Delete(key)
}

// police puts the device under key of owner under the policy id, or under none for 0.
func (v policyMaps) police(key uint32, owner uint64, group uint32, id uint16, p *policy.Policy, back *rollback.Stack) error {
	old, had, err := v.devices.Get(key)
	if err != nil {
		return fmt.Errorf("sl_dev_policy: %w", err)
	}
	if id == 0 && !had {
		return nil
	}
	back.Push("policy of a device", func(context.Context) error {
		if had {
			return v.devices.Put(key, &old)
		}
		return v.devices.Delete(key)
	})
	if id == 0 {
		return v.devices.Delete(key)
	}
	if err := v.devices.Put(key, policymap.NewPoliced(owner, group, id, p.Mode)); err != nil {
		return pintree.WrapFull("sl_dev_policy", err)
	}
	return nil
}

// release takes the device under key from its policy, if it is owner's.
func (v policyMaps) release(key uint32, owner uint64) error {
	old, had, err := v.devices.Get(key)
	if err != nil || !had || old.Owner != owner {
		return err
	}
	return v.devices.Delete(key)
}

// forget deletes the policies that no device is under.
func (v policyMaps) forget() error {
	used, err := v.devices.All()
	if err != nil {
		return fmt.Errorf("sl_dev_policy: %w", err)
	}
	ids, err := v.rules.IDs()
	if err != nil {
		return fmt.Errorf("sl_policies: %w", err)
	}
	inUse := make(map[uint16]bool, len(used))
	for _, p := range used {
		inUse[p.Policy] = true
	}
	var errs []error
	for _, id := range ids {
		if !inUse[id] {
			errs = append(errs, v.rules.Delete(id))
		}
	}
	return errors.Join(errs...)
}

// collectPolicies removes what is said of devices that are no endpoints any more, and policies without a device.
func (d *Datapath) collectPolicies() error {
	v, err := d.policyMaps()
	if err != nil {
		return err
	}
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	counted, err := eps.Stats.Keys()
	if err != nil {
		return err
	}
	all, err := v.devices.All()
	if err != nil {
		return fmt.Errorf("sl_dev_policy: %w", err)
	}
	var errs []error
	for key := range all {
		if !slices.Contains(counted, key) {
			errs = append(errs, v.devices.Delete(key))
		}
	}
	return errors.Join(append(errs, v.forget())...)
}

// checkPolicy compares the policy of the device under key with the policy p of ref, and returns its id.
func (d *Datapath) checkPolicy(key uint32, ref attachments.ID, p *policy.Policy) (uint16, error) {
	v, err := d.policyMaps()
	if err != nil {
		return 0, err
	}
	got, had, err := v.devices.Get(key)
	if err != nil {
		return 0, fmt.Errorf("sl_dev_policy: %w", err)
	}
	if p.Empty() {
		if had {
			return 0, pintree.Differs("%s is under a policy, want none", ref)
		}
		return 0, nil
	}
	want, err := policymap.FromPolicy(p)
	if err != nil {
		return 0, err
	}
	have, ok, err := v.rules.Get(got.Policy)
	switch {
	case err != nil:
		return 0, fmt.Errorf("sl_policies: %w", err)
	case !had:
		return 0, pintree.Differs("%s is under no policy", ref)
	case !ok || !have.Same(want) || got.Mode() != p.Mode:
		return 0, pintree.Differs("%s is under another policy than the configuration's", ref)
	}
	return got.Policy, nil
}

// PolicyStatus is a policy with what it decided and who is under it.
type PolicyStatus struct {
	ID      uint16       `json:"id"`
	Mode    policy.Mode  `json:"ingressPolicy"`
	Ingress []RuleStatus `json:"ingress"`
	Egress  []RuleStatus `json:"egress"`
	Owners  []uint64     `json:"owners"`
}

// RuleStatus is one entry of a policy; the last of a direction is its default.
type RuleStatus struct {
	Number   int          `json:"number"` // of the rule in its list; -1: the default
	Allow    bool         `json:"allow"`
	Network  netip.Prefix `json:"network,omitzero"` // zero: any
	Protocol string       `json:"protocol"`
	Ports    string       `json:"ports,omitempty"`
	Hits     uint64       `json:"hits"` // connections it allowed, packets it denied
}

// Policies returns the policies in force, by id. One that no device is under is not.
func (d *Datapath) Policies(_ context.Context) ([]PolicyStatus, error) {
	v, err := d.policyMaps()
	if err != nil {
		return nil, err
	}
	all, err := v.devices.All()
	if err != nil {
		return nil, fmt.Errorf("sl_dev_policy: %w", err)
	}
	ids, err := v.rules.IDs()
	if err != nil {
		return nil, fmt.Errorf("sl_policies: %w", err)
	}
	slices.Sort(ids)
	out := make([]PolicyStatus, 0, len(ids))
	for _, id := range ids {
		value, ok, err := v.rules.Get(id)
		if err != nil {
			return nil, fmt.Errorf("sl_policies: %w", err)
		}
		if !ok {
			continue
		}
		s := PolicyStatus{ID: id, Mode: value.Mode()}
		s.Ingress, s.Egress = ruleStatus(value.Ingress()), ruleStatus(value.Egress())
		for _, p := range all {
			if p.Policy == id {
				s.Owners = append(s.Owners, p.Owner)
			}
		}
		if len(s.Owners) == 0 {
			continue
		}
		slices.Sort(s.Owners)
		out = append(out, s)
	}
	return out, nil
}

func ruleStatus(lines []policymap.Line) []RuleStatus {
	out := make([]RuleStatus, 0, len(lines))
	for _, l := range lines {
		s := RuleStatus{Number: l.Number, Allow: l.Allow, Network: l.Prefix, Protocol: l.Protocol, Hits: l.Hits}
		if l.Ports != nil {
			s.Ports = l.Ports.String()
		}
		out = append(out, s)
	}
	return out
}
