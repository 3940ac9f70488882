// SPDX-License-Identifier: Apache-2.0

package loader

import "github.com/cilium/ebpf"

// programPrefix begins the name of every program, map and filter of ours.
const programPrefix = "sl_"

// hook is a place on a device together with the program that goes there.
type hook struct {
	name    string // in pin names
	program string // as loaded; at most 15 characters, so that bpftool shows all of it
	egress  bool   // direction as the kernel sees the device
}

// A pod's packets come in at the host end of its device: what the pod sends is the host end's ingress.
func hookPodEgress() hook  { return hook{name: "pod_egress", program: "sl_pod_egress"} }
func hookPodIngress() hook { return hook{name: "pod_ingress", program: "sl_pod_ingress", egress: true} }
func hookUplIngress() hook { return hook{name: "upl_ingress", program: "sl_upl_ingress"} }
func hookUplEgress() hook  { return hook{name: "upl_egress", program: "sl_upl_egress", egress: true} }

func podHooks() []hook    { return []hook{hookPodEgress(), hookPodIngress()} }
func uplinkHooks() []hook { return []hook{hookUplIngress(), hookUplEgress()} }
func allHooks() []hook    { return append(podHooks(), uplinkHooks()...) }

func (h hook) tcx() ebpf.AttachType {
	if h.egress {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

// direction is the word of bpftool and tc.
func (h hook) direction() string {
	if h.egress {
		return "egress"
	}
	return "ingress"
}
