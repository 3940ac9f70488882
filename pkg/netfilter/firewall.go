// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// DefaultAdminChain is the default of iptablesAdminChainName.
const DefaultAdminChain = "CNI-ADMIN"

// Ingress policies of the firewall plugin.
const (
	PolicyOpen       = "open"
	PolicySameBridge = "same-bridge"
	PolicyIsolated   = "isolated"
)

// Firewall is what an attachment wants of the firewall.
type Firewall struct {
	Ref   attachments.ID
	Addrs []netip.Prefix // to admit
	// AdminChain is called before all else; empty means DefaultAdminChain.
	AdminChain string
	// Policy isolates Bridge unless it is open or empty.
	Policy, Bridge string
}

// AdminChainName is AdminChain or its default.
func (f Firewall) AdminChainName() string {
	if f.AdminChain == "" {
		return DefaultAdminChain
	}
	return f.AdminChain
}

// Isolates reports whether the policy separates bridges.
func (f Firewall) Isolates() bool { return f.Policy == PolicySameBridge || f.Policy == PolicyIsolated }

// Withdrawal is what DelFirewall removes.
type Withdrawal struct {
	Ref   attachments.ID
	Addrs []netip.Addr // those that no other attachment has
	// AlsoHeldBy has other attachments with an address of this one: it stays admitted.
	AlsoHeldBy map[netip.Addr]attachments.ID
	// Bridge was isolated for the attachment; empty: none was. The isolation
	// goes unless Used, called while no other plugin of Sluice can change
	// anything, says that others rely on it.
	Bridge string
	Used   func() bool
}
