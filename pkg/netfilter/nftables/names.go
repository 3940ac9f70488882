// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Names of the upstream plugins v1.9.1 (plugins/meta/portmap, pkg/ip/ipmasq_*).
// They are read by upstream's DEL and must not change.
const (
	portTable = "cni_hostport"
	masqTable = "cni_plugins_masquerade"
	masqChain = "masq_checks"

	commentLen = 128 // of a rule
	hashChars  = 16
)

// networkHash and attachmentHash begin the comments of masquerading rules.
func networkHash(network string) string { return netfilter.HashedName(hashChars, "", network) }

func attachmentHash(r attachments.ID) string {
	return networkHash(r.Network) + "-" + netfilter.HashedName(hashChars, "", r.IfName+":"+r.ContainerID)
}

func commentOf(r attachments.ID) string {
	plain := func(s string) string { return strings.ReplaceAll(s, `"`, "") }
	c := fmt.Sprintf("%s, net: %s, if: %s, id: %s", attachmentHash(r), plain(r.Network), plain(r.IfName), plain(r.ContainerID))
	return c[:min(len(c), commentLen)]
}

// IsTable reports whether a table is one that this package or upstream's plugins
// make.
func IsTable(name string) bool {
	return slices.Contains([]string{portTable, masqTable, firewallTable, guardTable, answersTable}, name)
}
