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
	networkpolicymap "github.com/sluice-cni/sluice/pkg/maps/networkpolicy"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// policyMaps are the views of the firewall's maps.
type policyMaps struct {
	policies policymap.Map
	devices  policymap.Devices
	noted    networkpolicymap.Devices
}

func (d *Datapath) policyMaps() (v policyMaps, err error) {
	rules, err := d.tree.Pinned(pintree.MapPolicies)
	if err != nil {
		return v, err
	}
	devices, err := d.tree.Pinned(pintree.MapDevicePolicy)
	if err != nil {
		return v, err
	}
	network, err := d.tree.Pinned(pintree.MapNPPolicies)
	if pintree.IgnoreNotLoaded(err) != nil { // a tree of an earlier build has none
		return v, err
	}
	noted, err := d.notedDevices()
	return policyMaps{policymap.New(rules, network), policymap.NewDevices(devices), noted}, err
}

// notedDevices returns the devices under NetworkPolicy. A tree of an earlier build has none.
func (d *Datapath) notedDevices() (networkpolicymap.Devices, error) {
	m, err := d.tree.Pinned(pintree.MapNPDevices)
	return networkpolicymap.NewDevices(m), pintree.IgnoreNotLoaded(err)
}

// releaseNoted takes the device under key of owner from under NetworkPolicy.
func (d *Datapath) releaseNoted(key uint32, owner uint64) error {
	noted, err := d.notedDevices()
	if err != nil {
		return err
	}
	return releaseNoted(noted, key, owner)
}

func releaseNoted(noted networkpolicymap.Devices, key uint32, owner uint64) error {
	v, had, err := noted.Get(key)
	if err != nil || !had || v.Owner != owner {
		return err
	}
	return noted.Delete(key)
}

// rulesOf returns the rules of p as programs read them, nil if they restrict nothing.
func rulesOf(p *policy.Policy) (*policymap.Value, error) {
	if p.Empty() {
		return nil, nil
	}
	return policymap.FromPolicy(p)
}

// id returns the id of want in the maps, where it puts it unless it is there; 0 for a policy that restricts nothing. An id
// follows from what the policy says: a flow that remembers one of a policy that has gone meets the same under it, or hardly ever another.
//
// A policy stays in the map when the last device leaves it: to know that would take a walk over all devices. It goes with GC, or when
// the map has no room, so that a verb pays for a walk once in as many new policies as fit.
func (v policyMaps) id(want policymap.Policy, back *rollback.Stack) (uint16, error) {
	if want.Empty() {
		return 0, nil
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
func (v policyMaps) put(want policymap.Policy, back *rollback.Stack) (uint16, error) {
	id, there, err := v.policies.Place(want)
	if there || err != nil {
		return id, err
	}
	back.Push("policy", func(context.Context) error { return v.policies.Delete(id) })
	return id, v.policies.Put(id, want)
}

// applyPolicy puts the device under key under the rules p and the NetworkPolicies of pod, and returns the id of both. group is the device
// that its packets are routed from; 0 inside a pod.
func (d *Datapath) applyPolicy(key uint32, ref attachments.ID, group uint32, p *policy.Policy, pod NetworkPolicyPod, back *rollback.Stack) (uint16, error) {
	v, err := d.policyMaps()
	if err != nil {
		return 0, err
	}
	var want policymap.Policy
	want.Rules, err = rulesOf(p)
	if err == nil {
		want.Network, err = d.networkPolicyOf(pod)
	}
	if err != nil {
		return 0, fmt.Errorf("policy of %s: %w", ref, err)
	}
	if err := v.noteDevice(key, ref.Owner(), group, pod, want.Network, back); err != nil {
		return 0, err
	}
	id, err := v.id(want, back)
	if err != nil {
		return 0, fmt.Errorf("policy of %s: %w", ref, err)
	}
	return id, v.police(key, ref.Owner(), group, id, want, back)
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
	return errors.Join(v.devices.Delete(key), v.noted.Delete(key))
}

// police puts the device under key of owner under the policy p with that id, or under none for 0.
func (v policyMaps) police(key uint32, owner uint64, group uint32, id uint16, p policymap.Policy, back *rollback.Stack) error {
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
	if err := v.devices.Put(key, policymap.NewPoliced(owner, group, id, p)); err != nil {
		return pintree.WrapFull("sl_dev_policy", err)
	}
	return nil
}

// release takes the device under key from its policy, if it is owner's.
func (v policyMaps) release(key uint32, owner uint64) error {
	if err := releaseNoted(v.noted, key, owner); err != nil {
		return err
	}
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
	ids, err := v.policies.IDs()
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
			errs = append(errs, v.policies.Delete(id))
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
	noted, err := v.noted.All()
	if err != nil {
		return fmt.Errorf("sl_np_devices: %w", err)
	}
	var errs []error
	for key := range all {
		if !slices.Contains(counted, key) {
			errs = append(errs, v.devices.Delete(key))
		}
	}
	for key := range noted {
		if !slices.Contains(counted, key) {
			errs = append(errs, v.noted.Delete(key))
		}
	}
	return errors.Join(append(errs, v.forget())...)
}

// checkPolicy compares the policy of the device under key with the rules p of ref and its pod, and returns the policy's id. Which
// NetworkPolicies there are is the agent's business.
func (d *Datapath) checkPolicy(key uint32, ref attachments.ID, p *policy.Policy, pod NetworkPolicyPod) (uint16, error) {
	v, err := d.policyMaps()
	if err != nil {
		return 0, err
	}
	got, had, err := v.devices.Get(key)
	if err != nil {
		return 0, fmt.Errorf("sl_dev_policy: %w", err)
	}
	if err := v.checkDevice(key, ref, pod); err != nil {
		return 0, err
	}
	want, err := rulesOf(p)
	if err != nil {
		return 0, err
	}
	if !had && want != nil {
		return 0, pintree.Differs("%s is under no policy", ref)
	}
	if !had {
		return 0, nil
	}
	have, err := v.policies.Get(got.Policy)
	switch {
	case err != nil:
		return 0, fmt.Errorf("sl_policies: %w", err)
	case want == nil && have.Rules != nil, want == nil && pod.UID == "":
		return 0, pintree.Differs("%s is under a policy, want none", ref)
	case want != nil && (have.Rules == nil || !have.Rules.Same(want) || got.Mode() != p.Mode):
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
	ids, err := v.policies.IDs()
	if err != nil {
		return nil, fmt.Errorf("sl_policies: %w", err)
	}
	slices.Sort(ids)
	out := make([]PolicyStatus, 0, len(ids))
	for _, id := range ids {
		value, err := v.policies.Get(id)
		if err != nil {
			return nil, fmt.Errorf("sl_policies: %w", err)
		}
		if value.Rules == nil {
			continue
		}
		s := PolicyStatus{ID: id, Mode: value.Mode()}
		s.Ingress, s.Egress = ruleStatus(value.Rules.Ingress()), ruleStatus(value.Rules.Egress())
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
