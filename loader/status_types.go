// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
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
	Runs          []ProgramRun     `json:"runs"`
	Devices       []DeviceStatus   `json:"devices"`
	Skipped       []SkippedDevice  `json:"skipped,omitempty"`      // devices that carry traffic and are not handled yet
	Unseen        []Unseen         `json:"unseen,omitempty"`       // what has changed since the last look at the node
	LostGateways  []netip.Addr     `json:"lostGateways,omitempty"` // of pods, on no device any more
	Local         LocalStatus      `json:"local"`                  // the node's own processes
	HostAddresses []HostAddress    `json:"hostAddresses"`
	Maps          []MapStatus      `json:"maps"`
	Drops         []DropCount      `json:"drops"`
	Endpoints     []EndpointStatus `json:"endpoints"`
	Total         EndpointCounter  `json:"total"` // of all pods since the maps were made, of those that have gone too
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

// MapStatus is a map and its fill.
type MapStatus struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	ID      uint32 `json:"id"`
	Entries int    `json:"entries"`
	InUse   int    `json:"inUse"` // Entries, but in the tables of connections those of connections that have not ended
	Max     int    `json:"max"`
}

// Fill is the part of the map that is in use, 0 to 1. ok is false where nothing tells: an array is always full, and a map that evicts
// mostly has what is not used any more.
func (m *MapStatus) Fill() (fill float64, ok bool) {
	counted := m.Name == pintree.MapConntrack || m.Name == pintree.MapConntrackUnassured
	if m.Max == 0 || !m.canFill() || m.Evicts() && !counted {
		return 0, false
	}
	return float64(m.InUse) / float64(m.Max), true
}

// canFill reports whether Entries can be less than Max: an array is always full.
func (m *MapStatus) canFill() bool {
	return !strings.HasSuffix(m.Type, "Array") && m.Type != bpfsys.RingBuf.String()
}

// Evicts reports whether the kernel makes room in the map by taking out what was not used for longest. Such a map is full after a while,
// mostly of what has ended: how many entries it has says nothing.
func (m *MapStatus) Evicts() bool { return strings.HasPrefix(m.Type, "LRU") }

// SizeKey is the key of mapSizes in the node configuration that Max comes from; empty: it is fixed.
func (m *MapStatus) SizeKey() string { return pintree.SizeKey(m.Name) }

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
	RxFast    uint64 `json:"rxFast"` // of RxPackets, by the fast path
	TxFast    uint64 `json:"txFast"`
	Drops     uint64 `json:"drops"`
}
