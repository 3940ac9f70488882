// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
)

// checkRecords looks for attachments whose ADD did not end, and for those that
// the datapath should serve and does not.
func checkRecords(f *Facts) []Finding {
	var out []Finding
	for _, r := range f.Records {
		for _, name := range slices.Sorted(maps.Keys(r.Plugins)) {
			if r.Plugins[name].State == attachments.StateIntent {
				out = append(out, Finding{"records", Info, fmt.Sprintf("the ADD of %s by %s is under way, or was killed", r.ID, name), "if the pod is not being started, let the runtime delete it"})
			}
		}
	}
	if f.Status == nil {
		return out
	}
	for _, r := range Unserved(f.Records, f.Status.Endpoints) {
		if !f.IsLeft(r) {
			out = append(out, Finding{"records", Problem, fmt.Sprintf("%s has a record, but the datapath does not serve it: its ports, masquerading or admission do not work", r.ID), "delete and add the pod again"})
		}
	}
	return out
}

// Unserved returns the records of those whose ADD has ended and that use eBPF, without an entry in the datapath.
func Unserved(records []*attachments.Record, endpoints []loader.EndpointStatus) []*attachments.Record {
	served := make(map[uint64]bool, len(endpoints))
	for _, e := range endpoints {
		served[e.Owner] = true
	}
	var out []*attachments.Record
	for _, r := range records {
		if !served[r.Owner()] && slices.Contains(backends(r), "ebpf") &&
			!slices.ContainsFunc(slices.Collect(maps.Values(r.Plugins)), func(s attachments.Section) bool { return s.State == attachments.StateIntent }) {
			out = append(out, r)
		}
	}
	return out
}

// IsLeft reports whether an attachment's pod is gone, and its record is what it has left.
func (f *Facts) IsLeft(r *attachments.Record) bool {
	return slices.ContainsFunc(f.Leftovers.Items, func(i orphans.Item) bool {
		return i.Kind == orphans.Record && i.What == "record of "+r.ID.String()
	})
}

// checkLeftovers names what is left of attachments that are gone.
func checkLeftovers(f *Facts) []Finding {
	var out []Finding
	for _, i := range f.Leftovers.Items {
		n := Finding{"leftover", Warning, i.What + ": " + i.Why, "sluice cleanup --yes removes it"}
		switch {
		case i.Removable:
		case i.Kind == orphans.Reservation:
			n = Finding{"reservation", Info, i.What + ": " + i.Why, "if no runtime knows the container (crictl ps -a, ctr c ls, podman ps -a), remove the file of that name below /var/lib/cni/networks"}
		default:
			n.Check, n.Level, n.Do = "doubtful", Info, "sluice cleanup leaves it alone: find out whose it is, and let the runtime delete the container"
		}
		out = append(out, n)
	}
	if len(f.Leftovers.Removable()) == 0 {
		out = append(out, Finding{"leftover", OK, "nothing is left of pods that are gone; looked at " + f.Leftovers.Known, ""})
	}
	return out
}
