// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// PortTables publishes ports.
type PortTables interface {
	AddPorts(ctx context.Context, p Ports) error
	DelPorts(ctx context.Context, h Held) error
	CheckPorts(ctx context.Context, p Ports) error
	SweepPorts(ctx context.Context, network string, keep func(containerID string) bool) error
}

// MasqTables masquerades.
type MasqTables interface {
	AddMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error
	// DelMasq takes out the addresses, with nil all but spare that bears the attachment's name.
	DelMasq(ctx context.Context, ref attachments.ID, addrs, spare []netip.Prefix) error
	CheckMasq(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error
	SweepMasq(ctx context.Context, network string, keep []attachments.ID) error
}

// FirewallTables admits addresses and isolates bridges.
type FirewallTables interface {
	AddFirewall(ctx context.Context, f Firewall) error
	DelFirewall(ctx context.Context, w Withdrawal) error
	CheckFirewall(ctx context.Context, f Firewall) error
	// AdmitsOthers reports whether addresses are admitted that known does not know.
	AdmitsOthers(ctx context.Context, known func(netip.Addr) bool) (bool, error)
}

// LocalnetTables lets the node's own processes reach pods from 127.0.0.1.
type LocalnetTables interface {
	// EnableLocalnet does so for pods behind the device. Hosts behind it do not
	// reach 127.0.0.1 of the node.
	EnableLocalnet(ctx context.Context, ifname string) error
	// DisableLocalnet takes back what EnableLocalnet did. It leaves everything if
	// used says so, or if a port leads to an address that known does not know: a
	// pod of upstream's plugins may be behind the device. Both are called while no
	// other plugin of Sluice can change anything. A device that is gone took the
	// setting with it.
	DisableLocalnet(ctx context.Context, ifname string, used func() bool, known func(netip.Addr) bool) error
	// Guarded lists the devices that are enabled.
	Guarded(ctx context.Context) ([]string, error)
}

// Tables is one of iptables-nft, iptables-legacy and nftables.
type Tables interface {
	// Name is what attachment records call it.
	Name() string
	PortTables
	MasqTables
	FirewallTables
	LocalnetTables
}

// Choice is which tables a node uses, and why.
type Choice struct {
	Name    string    `json:"name"` // as in records
	Reason  string    `json:"reason"`
	Fact    bool      `json:"fact"`              // seen in use or configured, not a default
	Variant string    `json:"variant,omitempty"` // of iptables, as it was configured then
	Decided time.Time `json:"decided"`
	Seen    time.Time `json:"seen"` // when the node was last looked at
}

// Usage is how many rules each kind of tables has.
type Usage struct {
	NFT    int `json:"iptables_nft"` // rules in the tables of iptables-nft
	Legacy int `json:"iptables_legacy"`
	Native int `json:"nftables"` // rules in other tables of nftables
}
