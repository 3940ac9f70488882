// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// ownerView is an attachment in the tool's output. The names are empty when no
// record of it exists (any more).
type ownerView struct {
	ID          string `json:"id"` // as the maps hold it, 16 hex digits
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"container_id,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Namespace   string `json:"namespace,omitempty"` // of the pod, as the runtime named it; only some commands ask for it
	Pod         string `json:"pod,omitempty"`
}

func (o ownerView) known() bool { return o.ContainerID != "" }

// text is "network/container/ifname" for a table, or the map's number.
func (o ownerView) text(wide bool) string {
	if !o.known() {
		return "#" + o.ID
	}
	return o.Network + "/" + shortID(o.ContainerID, wide) + "/" + o.IfName
}

// podText is "namespace/pod" for a table where it is known and not wide, with the interface if that is not the usual one. Otherwise
// it is text.
func (o ownerView) podText(wide bool) string {
	if o.Pod == "" || wide {
		return o.text(wide)
	}
	if o.IfName == "eth0" {
		return o.Namespace + "/" + o.Pod
	}
	return o.Namespace + "/" + o.Pod + " " + o.IfName
}

// isCalled reports whether text names the pod as the commands print it: "namespace/pod", with the interface if that is not the usual one,
// network/ID/interface with the beginning of the container ID, or that alone.
func (o ownerView) isCalled(text string) bool {
	if text == "" || !o.known() {
		return false
	}
	if o.Pod != "" && (text == o.Namespace+"/"+o.Pod || text == o.Namespace+"/"+o.Pod+" "+o.IfName) || strings.HasPrefix(o.ContainerID, text) {
		return true
	}
	rest, ok := strings.CutPrefix(text, o.Network+"/")
	id, whole := strings.CutSuffix(rest, "/"+o.IfName)
	return ok && whole && id != "" && strings.HasPrefix(o.ContainerID, id)
}

// owners finds the attachment behind an owner number.
type owners map[uint64]attachment

// attachment is one with a record. Its pod has a name only where podNames has asked for it.
type attachment struct {
	attachments.ID

	namespace, pod string
}

// owners reads the attachment records. A record that cannot be read only costs
// a name, so it is said and not fatal.
func (a *app) owners() owners {
	records, err := a.node.Records()
	if err != nil {
		fmt.Fprintf(quiet{a, a.err}, "sluice: some attachment records cannot be read: %v\n", err)
	}
	return ownersOf(records)
}

// ownersFor is owners, with the names of pods if text, a flag, may be one.
func (a *app) ownersFor(text string) owners {
	all := a.owners()
	if _, err := netip.ParseAddr(text); text != "" && err != nil {
		(&podNames{node: a.node}).name(all)
	}
	return all
}

func ownersOf(records []*attachments.Record) owners {
	out := make(owners, len(records))
	for _, r := range records {
		out[r.Owner()] = attachment{ID: r.ID}
	}
	return out
}

func (o owners) view(owner uint64) ownerView {
	ref := o[owner]
	return ownerView{
		ID: fmt.Sprintf("%016x", owner), Network: ref.Network, ContainerID: ref.ContainerID, IfName: ref.IfName,
		Namespace: ref.namespace, Pod: ref.pod,
	}
}

// ownerFilter narrows a list to attachments; empty fields match everything.
type ownerFilter struct {
	network   string
	container string // a prefix of the ID
}

// none is the sentence for a list with nothing in it: empty, unless it is the filter that leaves nothing.
func (f ownerFilter) none(empty string) string {
	if f != (ownerFilter{}) {
		return "No attachment matches."
	}
	return empty
}

func (f ownerFilter) matches(o ownerView) bool {
	return (f.network == "" || o.Network == f.network) && strings.HasPrefix(o.ContainerID, f.container)
}
