// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"slices"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// programPrefix begins the name of every program, map and filter of ours.
const programPrefix = "sl_"

// hook is a place on a device together with the program that goes there.
type hook struct {
	name    string // in pin names
	program string // as loaded; at most 15 characters, so that bpftool shows all of it
	egress  bool   // direction as the kernel sees the device
	rank    uint16 // among programs of ours that share a direction of a device: the smaller runs first
}

// A pod's packets come in at the host end of its device: what the pod sends is the host end's ingress.
func hookPodEgress() hook  { return hook{name: "pod_egress", program: "sl_pod_egress"} }
func hookPodIngress() hook { return hook{name: "pod_ingress", program: "sl_pod_ingress", egress: true} }
func hookUplIngress() hook { return hook{name: "upl_ingress", program: "sl_upl_ingress"} }
func hookUplEgress() hook  { return hook{name: "upl_egress", program: "sl_upl_egress", egress: true} }

// The same two for uplinks without Ethernet header: other constants, other names.
func hookBareIngress() hook { return hook{name: "upl_ingress", program: "sl_upl_in_bare"} }
func hookBareEgress() hook {
	return hook{name: "upl_egress", program: "sl_upl_eg_bare", egress: true}
}

// Programs on the pod's own device, inside its namespace.
func hookOwnEgress() hook  { return hook{name: "own_egress", program: "sl_own_egress", egress: true} }
func hookOwnIngress() hook { return hook{name: "own_ingress", program: "sl_own_ingress"} }

// edtRank is behind the programs that count and drop: a packet they drop must not take up time.
const edtRank = 4

// The program of limited rates, on whatever device has the fq qdisc.
func hookEDT() hook { return hook{name: "edt", program: "sl_edt", egress: true, rank: edtRank} }

func edtHooks() []hook    { return []hook{hookEDT()} }
func podHooks() []hook    { return []hook{hookPodEgress(), hookPodIngress()} }
func bareHooks() []hook   { return []hook{hookBareIngress(), hookBareEgress()} }
func insideHooks() []hook { return []hook{hookOwnEgress(), hookOwnIngress()} }

// The deny list, before everything else on an uplink. It is an XDP link, not one of tc.
func hookXDP() hook { return hook{name: "xdp", program: "sl_xdp_uplink"} }

func allHooks() []hook {
	return slices.Concat(loadHooks(), bareHooks(), insideHooks())
}

// loadHooks are those whose programs every load verifies. The others' wait for a device that needs them (see ondemand.go).
func loadHooks() []hook {
	return slices.Concat(podHooks(), uplinkHooks(false), edtHooks(), []hook{hookXDP()})
}

// uplinkHooks are those of an uplink with or without Ethernet header (bare). They have the same places.
func uplinkHooks(bare bool) []hook {
	if bare {
		return bareHooks()
	}
	return []hook{hookUplIngress(), hookUplEgress()}
}

// priority is the filter's, for programs on clsact.
func (h hook) priority() uint16 { return filterPriority + h.rank }

func (h hook) tcx() bpfsys.AttachType {
	if h.egress {
		return bpfsys.TCXEgress
	}
	return bpfsys.TCXIngress
}

// direction is the word of bpftool and tc.
func (h hook) direction() string {
	if h.egress {
		return "egress"
	}
	return "ingress"
}
