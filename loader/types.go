// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"time"
)

// Status is one screen of the datapath.
type Status struct {
	Backend       string           `json:"backend"`
	Reason        string           `json:"reason"`
	Decided       time.Time        `json:"decided"`
	Kernel        string           `json:"kernel"`
	Build         string           `json:"build"`
	PinPath       string           `json:"pinPath"`
	Attach        AttachModes      `json:"attach"`
	Probes        []Probe          `json:"probes"`
	Config        ConfigStatus     `json:"config"`
	Devices       []DeviceStatus   `json:"devices"`
	Skipped       []SkippedDevice  `json:"skipped,omitempty"`      // devices that carry traffic and are not handled yet
	Unseen        []Unseen         `json:"unseen,omitempty"`       // what has changed since the last look at the node
	LostGateways  []netip.Addr     `json:"lostGateways,omitempty"` // of pods, on no device any more
	Local         LocalStatus      `json:"local"`                  // the node's own processes
	HostAddresses []HostAddress    `json:"hostAddresses"`
	Maps          []MapStatus      `json:"maps"`
	Drops         []DropCount      `json:"drops"`
	Endpoints     []EndpointStatus `json:"endpoints"`
}

// DeviceStatus is a device with programs of ours.
type DeviceStatus struct {
	Ifindex  int             `json:"ifindex"`
	Name     string          `json:"name"`
	Role     string          `json:"role"` // "uplink" or "pod"
	Source4  netip.Addr      `json:"source4,omitzero"`
	Source6  netip.Addr      `json:"source6,omitzero"`
	Programs []ProgramStatus `json:"programs"`
}

// SkippedDevice is a device that would be an uplink but is not handled.
type SkippedDevice struct {
	Ifindex int    `json:"ifindex"`
	Name    string `json:"name"`
	Why     string `json:"why"`
}

// Unseen is something of the node that has changed since the maps were last brought up to date: the next Sync takes it in.
type Unseen struct {
	Ifindex int        `json:"ifindex"`
	Name    string     `json:"name"`
	Addr    netip.Addr `json:"addr,omitzero"`  // of the device; invalid: the device itself, which is an uplink now
	Gone    bool       `json:"gone,omitempty"` // the address has left the node
}

// HostAddress is an address that stands for the node.
type HostAddress struct {
	Addr    netip.Addr `json:"addr"`
	Ifindex int        `json:"ifindex"`
}

// MapStatus is a map and its fill.
type MapStatus struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	ID      uint32 `json:"id"`
	Entries int    `json:"entries"`
	Max     int    `json:"max"`
}

// DropCount is the number of packets dropped for one reason.
type DropCount struct {
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
}

// EndpointStatus is one pod device with its counters.
type EndpointStatus struct {
	Owner        uint64          `json:"owner,string"`
	Features     []string        `json:"features"`
	Addrs        []netip.Prefix  `json:"addrs"`
	HostIfindex  int             `json:"hostIfindex"`
	HostIfName   string          `json:"hostIfName,omitempty"`
	RouteIfindex int             `json:"routeIfindex"`
	MAC          string          `json:"mac"`
	GatewayMAC   string          `json:"gatewayMAC"`
	MTU          int             `json:"mtu"`
	Stats        EndpointCounter `json:"stats"`

	// Of a device without a host end: where its programs are.
	Netns   string `json:"netns,omitempty"`   // path of the pod's namespace
	Ifindex int    `json:"ifindex,omitempty"` // in that namespace
	Number  int    `json:"number,omitempty"`  // of the device, in the maps
}

// EndpointCounter are the counters of a pod device since it was enabled, summed over CPUs.
type EndpointCounter struct {
	RxPackets uint64 `json:"rxPackets"` // toward the pod
	RxBytes   uint64 `json:"rxBytes"`
	TxPackets uint64 `json:"txPackets"`
	TxBytes   uint64 `json:"txBytes"`
	RxFast    uint64 `json:"rxFast"` // of RxPackets, by the learned path
	TxFast    uint64 `json:"txFast"`
	Drops     uint64 `json:"drops"`
}

// Flow is one connection through the datapath.
type Flow struct {
	Proto     uint8          `json:"proto"`
	Pod       netip.AddrPort `json:"pod"`
	Remote    netip.AddrPort `json:"remote"`
	Outside   netip.AddrPort `json:"outside,omitzero"` // the node's end of a translated connection
	State     string         `json:"state"`            // new, unreplied, established, closing, closed
	Kind      string         `json:"kind"`             // hostport, masquerade, plain
	PodOpened bool           `json:"podOpened"`
	Fast      bool           `json:"fast"` // both directions may take the shortcut
	Flags     []string       `json:"flags"`
	Age       time.Duration  `json:"age"`
	Idle      time.Duration  `json:"idle"`
	RxPackets uint64         `json:"rxPackets"`
	RxBytes   uint64         `json:"rxBytes"`
	TxPackets uint64         `json:"txPackets"`
	TxBytes   uint64         `json:"txBytes"`
	Owner     uint64         `json:"owner,string"`
}

// FlowFilter narrows Flows. Zero fields match everything.
type FlowFilter struct {
	Owner uint64
	Pod   netip.Addr
	Proto uint8
	All   bool // also flows that have expired and wait to be overwritten
}
