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
func hookFromPod() hook    { return hook{name: "from_pod", program: "sl_from_pod"} }
func hookToPod() hook      { return hook{name: "to_pod", program: "sl_to_pod", egress: true} }
func hookFromUplink() hook { return hook{name: "from_uplink", program: "sl_from_uplink"} }
func hookToUplink() hook   { return hook{name: "to_uplink", program: "sl_to_uplink", egress: true} }

// The same two for uplinks without Ethernet header: other constants, other names.
func hookFromL3Uplink() hook { return hook{name: "from_uplink", program: "sl_from_l3dev"} }
func hookToL3Uplink() hook {
	return hook{name: "to_uplink", program: "sl_to_l3dev", egress: true}
}

// Programs on the pod's own device, inside its namespace.
func hookNsEgress() hook  { return hook{name: "ns_egress", program: "sl_ns_egress", egress: true} }
func hookNsIngress() hook { return hook{name: "ns_ingress", program: "sl_ns_ingress"} }

// edtRank is behind the programs that count and drop: a packet they drop must not take up time.
const edtRank = 4

// The program of limited rates, on whatever device has the fq qdisc.
func hookEDT() hook { return hook{name: "edt", program: "sl_edt", egress: true, rank: edtRank} }

func edtHooks() []hook      { return []hook{hookEDT()} }
func podHooks() []hook      { return []hook{hookFromPod(), hookToPod()} }
func l3UplinkHooks() []hook { return []hook{hookFromL3Uplink(), hookToL3Uplink()} }
func podnsHooks() []hook    { return []hook{hookNsEgress(), hookNsIngress()} }

// The deny list, before everything else on an uplink. It is an XDP link, not one of tc.
func hookXDP() hook { return hook{name: "xdp", program: "sl_xdp_denylist"} }

func allHooks() []hook {
	return slices.Concat(loadHooks(), l3UplinkHooks(), podnsHooks())
}

// loadHooks are those whose programs every load verifies. The others' wait for a device that needs them (see lazyload.go).
func loadHooks() []hook {
	return slices.Concat(podHooks(), uplinkHooks(false), edtHooks(), []hook{hookXDP()})
}

// uplinkHooks are those of an uplink with or without Ethernet header (bare). They have the same places.
func uplinkHooks(bare bool) []hook {
	if bare {
		return l3UplinkHooks()
	}
	return []hook{hookFromUplink(), hookToUplink()}
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
