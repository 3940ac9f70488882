// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
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

	nftPortTable = "cni_hostport"
	nftMasqTable = "cni_plugins_masquerade"
	nftMasqChain = "masq_checks"

	// DefaultAdminChain is the default of iptablesAdminChainName.
	DefaultAdminChain = "CNI-ADMIN"

	chainNameLen   = 28  // what iptables takes
	deviceNameLen  = 15  // IFNAMSIZ less the end of the string
	nftCommentLen  = 128 // of a rule
	iptCommentLen  = 255
	nftIDHashChars = 16
)

// ChainNameRule says what ValidChainName wants, for an error.
const ChainNameRule = "must be 1-28 characters without white space, quotes or a leading dash"

// ValidChainName reports whether a configuration's name of an iptables chain can stand in a rule as one word. iptables-restore
// reads rules as lines, so a name with a line break would be a rule of its own.
func ValidChainName(name string) bool { return validWord(name, chainNameLen) }

// ValidDeviceName is ValidChainName for the name of a network device.
func ValidDeviceName(name string) bool { return validWord(name, deviceNameLen) }

func validWord(s string, size int) bool {
	return s != "" && len(s) <= size && s[0] != '-' && s[0] != '!' &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"'\;{}@/`, r) })
}

// hashed returns prefix and as many hex digits of SHA-512(what) as make size.
func hashed(size int, prefix, what string) string {
	sum := sha512.Sum512([]byte(what))
	return (prefix + hex.EncodeToString(sum[:]))[:size]
}

// masqChain, dnatChain and oldSNATChain name an attachment's own chains. The
// interface is not part of the name.
func masqChain(r attachments.ID) string {
	return hashed(chainNameLen, "CNI-", r.Network+r.ContainerID)
}

func dnatChain(r attachments.ID) string {
	return hashed(chainNameLen, "CNI-DN-", r.Network+r.ContainerID)
}

// secondDNATChain is the name for a container that is in the network twice, while
// the other attachment has upstream's.
func secondDNATChain(r attachments.ID) string {
	return hashed(chainNameLen, "CNI-DN-", r.Network+"\x00"+r.ContainerID+"\x00"+r.IfName)
}

func oldSNATChain(r attachments.ID) string {
	return hashed(chainNameLen, "CNI-SN-", r.Network+r.ContainerID)
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
	if len(c) <= iptCommentLen {
		return c
	}
	return c[:iptCommentLen-3] + "..." // upstream keeps one character more than fits
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

// nftNetwork and nftID begin the comments of masquerading rules in nftables.
func nftNetwork(network string) string { return hashed(nftIDHashChars, "", network) }

func nftID(r attachments.ID) string {
	return nftNetwork(r.Network) + "-" + hashed(nftIDHashChars, "", r.IfName+":"+r.ContainerID)
}

func nftComment(r attachments.ID) string {
	plain := func(s string) string { return strings.ReplaceAll(s, `"`, "") }
	c := fmt.Sprintf("%s, net: %s, if: %s, id: %s", nftID(r), plain(r.Network), plain(r.IfName), plain(r.ContainerID))
	return c[:min(len(c), nftCommentLen)]
}

// protoName is what both tools call a protocol.
func protoName(p uint8) string {
	switch p {
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return "tcp"
}

// multicast is the destination that is never masqueraded.
func multicast(v6 bool) string {
	if v6 {
		return "ff00::/8"
	}
	return "224.0.0.0/4"
}
