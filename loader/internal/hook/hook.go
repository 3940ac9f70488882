// SPDX-License-Identifier: Apache-2.0

// Package hook is the table of the places where programs of Sluice run, and of the programs that go there. It attaches nothing.
package hook

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// ProgramPrefix begins the name of every program, map and filter of ours.
const ProgramPrefix = "sl_"

// By what a program hangs on a device.
const (
	HowTCX    = "tcx"
	HowClsact = "clsact"
	HowXDP    = "xdp"
	HowNetkit = "netkit"
)

// Hook is a place on a device together with the program that goes there.
type Hook struct {
	Name    string // in pin names
	Program string // as loaded; at most 15 characters, so that bpftool shows all of it
	Egress  bool   // direction as the kernel sees the device
	Rank    int16  // among programs of ours that share a direction of a device: the smaller runs first
	// Netkit says that the device is the host veth of a netkit pair, and the program runs when the other end transmits: what an ingress
	// hook of the host veth sees, but before the packet is received there.
	Netkit bool
}

// OnNetkit are hooks of a host end that is netkit. The egress ones stay where they are: a netkit program would see neither the mark of a
// packet nor the device that it came in by, which the driver clears first.
func OnNetkit(hooks []Hook) []Hook {
	out := slices.Clone(hooks)
	for i := range out {
		out[i].Netkit = !out[i].Egress
	}
	return out
}

// Netkit divides hooks into those of netkit and the others.
func Netkit(hooks []Hook) (netkit, others []Hook) {
	for _, h := range hooks {
		if h.Netkit {
			netkit = append(netkit, h)
		} else {
			others = append(others, h)
		}
	}
	return netkit, others
}

// FromPod is the ingress of the host veth. What the pod sends comes in there.
func FromPod() Hook { return Hook{Name: "from_pod", Program: "sl_from_pod"} }

// ToPod is the egress of the host veth.
func ToPod() Hook { return Hook{Name: "to_pod", Program: "sl_to_pod", Egress: true} }

// FromUplink is the ingress of an uplink with Ethernet header.
func FromUplink() Hook { return Hook{Name: "from_uplink", Program: "sl_from_uplink"} }

// ToUplink is its egress.
func ToUplink() Hook { return Hook{Name: "to_uplink", Program: "sl_to_uplink", Egress: true} }

// FromL3Uplink is the ingress of an uplink without Ethernet header. Its program has other constants, and so another name.
func FromL3Uplink() Hook { return Hook{Name: "from_uplink", Program: "sl_from_l3dev"} }

// ToL3Uplink is its egress.
func ToL3Uplink() Hook {
	return Hook{Name: "to_uplink", Program: "sl_to_l3dev", Egress: true}
}

// FromClients is the ingress of a device that has clients of hostPorts on this node, but no programs of a pod or an uplink. Its program is an
// uplink's with other constants, and so has another name. It has the place of FromPod and FromUplink, which replace it.
func FromClients() Hook { return Hook{Name: "from_clients", Program: "sl_from_clients"} }

// ToClients is its egress.
func ToClients() Hook { return Hook{Name: "to_clients", Program: "sl_to_clients", Egress: true} }

// NsEgress is the egress of a podns device.
func NsEgress() Hook { return Hook{Name: "ns_egress", Program: "sl_ns_egress", Egress: true} }

// NsIngress is its ingress.
func NsIngress() Hook { return Hook{Name: "ns_ingress", Program: "sl_ns_ingress"} }

// edtRank is behind the programs that count and drop: a packet they drop must not take up time.
const edtRank = 4

// EDT is the egress of whatever device has the fq qdisc.
func EDT() Hook { return Hook{Name: "edt", Program: "sl_edt", Egress: true, Rank: edtRank} }

// policeRank is before FromPod, whose redirection is the last word about a packet.
const policeRank = -1

// EDTPolice is the ingress of a host veth whose pod has a limit on what it sends. The program is EDT's: the limit says what it does.
func EDTPolice() Hook { return Hook{Name: "edt_police", Program: EDT().Program, Rank: policeRank} }

// OfEDT are the hooks of limits. Each limit has one of them.
func OfEDT() []Hook { return []Hook{EDT(), EDTPolice()} }

// macCheckRank is before all others on a host veth: the fast path is checked too, and what is dropped takes up no rate.
const macCheckRank = -2

// MACCheck is the ingress of the host veth of a pod with macspoofchk.
func MACCheck() Hook { return Hook{Name: "mac_check", Program: "sl_mac_check", Rank: macCheckRank} }

// parentRank is before FromUplink, whose redirection is the last word about a packet.
const parentRank = -3

// ParentEgress is the egress of the parent device of pods without a host veth: what they send to the wire.
func ParentEgress() Hook {
	return Hook{Name: "parent_out", Program: "sl_parent", Egress: true, Rank: parentRank}
}

// ParentIngress is its ingress: what macvlan devices in bridge mode send to each other. The program is the same.
func ParentIngress() Hook {
	return Hook{Name: "parent_in", Program: ParentEgress().Program, Rank: parentRank}
}

// OfParent are the hooks of a parent device.
func OfParent() []Hook { return []Hook{ParentEgress(), ParentIngress()} }

// OfMACCheck is MACCheck as a list.
func OfMACCheck() []Hook { return []Hook{MACCheck()} }

// OfPod are the hooks of a host veth.
func OfPod() []Hook { return []Hook{FromPod(), ToPod()} }

// OfL3Uplink are the hooks of an uplink without Ethernet header.
func OfL3Uplink() []Hook { return []Hook{FromL3Uplink(), ToL3Uplink()} }

// OfClients are the hooks of a device with clients.
func OfClients() []Hook { return []Hook{FromClients(), ToClients()} }

// OfPodns are the hooks of a podns device.
func OfPodns() []Hook { return []Hook{NsEgress(), NsIngress()} }

// XDP is where the denylist runs, before everything else on an uplink. It is an XDP link, not one of tc.
func XDP() Hook { return Hook{Name: "xdp", Program: "sl_xdp_denylist"} }

// All are the hooks of devices.
func All() []Hook {
	return slices.Concat(AlwaysLoaded(), OfL3Uplink(), OfPodns(), OfParent())
}

// AlwaysLoaded are those whose programs every load verifies. The others' wait for a device that needs them (programs.Program).
func AlwaysLoaded() []Hook {
	return slices.Concat(OfPod(), OfUplink(false), OfClients(), OfEDT(), OfMACCheck(), []Hook{XDP()})
}

// OfUplink are those of an uplink with or without Ethernet header (bare). They have the same places.
func OfUplink(bare bool) []Hook {
	if bare {
		return OfL3Uplink()
	}
	return []Hook{FromUplink(), ToUplink()}
}

// Priority is the filter's, for programs on clsact.
func (h Hook) Priority() uint16 { return uint16(filterPriority + int(h.Rank)) }

// TCX is the hook for tcx links.
func (h Hook) TCX() bpfsys.AttachType {
	if h.Egress {
		return bpfsys.TCXEgress
	}
	return bpfsys.TCXIngress
}

// Direction is the word of bpftool and tc, of the host end also for a hook of netkit.
func (h Hook) Direction() string {
	if h.Egress {
		return "egress"
	}
	return "ingress"
}

// Socket is a socket call of the node's processes together with the program that goes there.
type Socket struct {
	Name    string // in pin names
	Program string
	Attach  bpfsys.AttachType
}

// Sockets are all socket calls with a program.
func Sockets() []Socket {
	return []Socket{
		{"connect4", "sl_connect4", bpfsys.CgroupInet4Connect},
		{"connect6", "sl_connect6", bpfsys.CgroupInet6Connect},
		{"sendmsg4", "sl_sendmsg4", bpfsys.CgroupUDP4Sendmsg},
		{"sendmsg6", "sl_sendmsg6", bpfsys.CgroupUDP6Sendmsg},
		{"recvmsg4", "sl_recvmsg4", bpfsys.CgroupUDP4Recvmsg},
		{"recvmsg6", "sl_recvmsg6", bpfsys.CgroupUDP6Recvmsg},
		{"getpeername4", "sl_peername4", bpfsys.CgroupInet4GetPeername},
		{"getpeername6", "sl_peername6", bpfsys.CgroupInet6GetPeername},
		{"sock_release", "sl_sock_release", bpfsys.CgroupInetSockRelease},
	}
}

// Our place among the filters of a hook. Filters run in the order of priority: ours come after those that an administrator
// gave a small number and before those the kernel numbered itself (from 49152). Handle and priority are "SL" in ASCII.
const (
	filterPriority = 0x534c
	filterHandle   = 0x534c
	filterRanks    = 8 // priorities from the lowest rank's on that are ours
)

// TCParent is the hook for clsact filters.
func (h Hook) TCParent() uint32 {
	if h.Egress {
		return rtnl.HookEgress
	}
	return rtnl.HookIngress
}

// Filter is ours for the hook, without a program.
func (h Hook) Filter() rtnl.BPFFilter {
	return rtnl.BPFFilter{Parent: h.TCParent(), Priority: h.Priority(), Protocol: unix.ETH_P_ALL, Handle: filterHandle, Name: h.Program}
}

// IsOurs recognises a filter by place, kind and name.
func IsOurs(f rtnl.FilterStatus) bool {
	return f.Kind == "bpf" && f.Handle == filterHandle && uint32(f.Priority)-(filterPriority+parentRank) < filterRanks &&
		strings.HasPrefix(f.Program, ProgramPrefix)
}
