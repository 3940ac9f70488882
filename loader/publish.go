// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"net/netip"
)

// HostPort is one published port.
type HostPort struct {
	HostIP  netip.Addr `json:"hostIP"` // unspecified of its family: every address of the node
	Proto   uint8      `json:"proto"`  // IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP
	Port    uint16     `json:"port"`
	PodIP   netip.Addr `json:"podIP"`
	PodPort uint16     `json:"podPort"`
	SNAT    bool       `json:"snat,omitempty"`
	MasqAll bool       `json:"masqAll,omitempty"`
}

// Publish makes ports the published ports of owner: keys it held before and that are not in ports are withdrawn. A key that
// another owner holds changes hands atomically, for new and for running flows. On error nothing is changed; the error wraps
// ErrFull when the map has no room.
func (d *Datapath) Publish(ctx context.Context, owner uint64, ports []HostPort) error { return nil }

// Unpublish withdraws the keys of ports that owner still holds; nil means all it holds. Missing is success.
func (d *Datapath) Unpublish(ctx context.Context, owner uint64, ports []HostPort) error { return nil }

// CheckPorts reports whether owner still holds every one of ports as published. The error wraps ErrDiffers.
func (d *Datapath) CheckPorts(ctx context.Context, owner uint64, ports []HostPort) error { return nil }
