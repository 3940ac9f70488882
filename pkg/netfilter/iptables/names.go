// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Names of the upstream plugins v1.9.1 (plugins/meta/portmap,
// plugins/meta/firewall, pkg/ip/ipmasq_*). They are read by upstream's DEL
// and must not change.
const (
	chainDNAT    = "CNI-HOSTPORT-DNAT"
	chainSetMark = "CNI-HOSTPORT-SETMARK"
	chainMasq    = "CNI-HOSTPORT-MASQ"
	chainOldSNAT = "CNI-HOSTPORT-SNAT"

	commentMark = "CNI portfwd masquerade mark"
	commentMasq = "CNI portfwd requiring masquerade"

	chainForward = "CNI-FORWARD"
	chainStage1  = "CNI-ISOLATION-STAGE-1"
	chainStage2  = "CNI-ISOLATION-STAGE-2"

	commentFirewall = "CNI firewall plugin rules"
	commentAdmin    = "CNI firewall plugin admin overrides"
	commentIsolate  = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"

	commentLen = 255 // what iptables takes
)

// masqChain, dnatChain and oldSNATChain name an attachment's own chains. The
// interface is not part of the name.
func masqChain(r attachments.ID) string {
	return netfilter.HashedName(netfilter.ChainNameLen, "CNI-", r.Network+r.ContainerID)
}

func dnatChain(r attachments.ID) string {
	return netfilter.HashedName(netfilter.ChainNameLen, "CNI-DN-", r.Network+r.ContainerID)
}

// secondDNATChain is the name for a container that is in the network twice, while
// the other attachment has upstream's.
func secondDNATChain(r attachments.ID) string {
	return netfilter.HashedName(netfilter.ChainNameLen, "CNI-DN-", r.Network+"\x00"+r.ContainerID+"\x00"+r.IfName)
}

func oldSNATChain(r attachments.ID) string {
	return netfilter.HashedName(netfilter.ChainNameLen, "CNI-SN-", r.Network+r.ContainerID)
}

// secondComment is dnatComment for the rules that lead to a secondDNATChain.
func secondComment(r attachments.ID) string {
	return trimComment(fmt.Sprintf(`dnat name: "%s" id: "%s" if: "%s"`, r.Network, r.ContainerID, r.IfName))
}

// dnatComment is the comment of the rules that lead to a dnatChain.
func dnatComment(r attachments.ID) string {
	return trimComment(fmt.Sprintf(`dnat name: "%s" id: "%s"`, r.Network, r.ContainerID))
}

func trimComment(c string) string {
	if len(c) <= commentLen {
		return c
	}
	return c[:commentLen-3] + "..." // upstream keeps one character more than fits
}

// masqComment is the comment of every masquerading rule of iptables.
func masqComment(r attachments.ID) string {
	return trimComment(fmt.Sprintf("name: %q id: %q", r.Network, r.ContainerID))
}

// namesIn reads network and container back from a comment of any kind, and the
// interface from a secondComment; ok is false when it was cut or is another's.
func namesIn(comment string) (ref attachments.ID, ok bool) {
	rest, found := strings.CutPrefix(strings.TrimPrefix(comment, "dnat "), `name: "`)
	if !found {
		return ref, false
	}
	network, rest, found := strings.Cut(rest, `" id: "`)
	if !found {
		return ref, false
	}
	rest, found = strings.CutSuffix(rest, `"`)
	ref.Network = network
	ref.ContainerID, ref.IfName, _ = strings.Cut(rest, `" if: "`)
	return ref, found
}

// multicast is the destination that is never masqueraded.
func multicast(v6 bool) string {
	if v6 {
		return "ff00::/8"
	}
	return "224.0.0.0/4"
}
