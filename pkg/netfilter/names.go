// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"
)

const (
	// ChainNameLen is how long a name of a chain of iptables may be.
	ChainNameLen = 28
	// DeviceNameLen is IFNAMSIZ less the end of the string.
	DeviceNameLen = 15
)

// ChainNameRule says what ValidChainName wants, for an error.
const ChainNameRule = "must be 1-28 characters without white space, quotes or a leading dash"

// ValidChainName reports whether a configuration's name of an iptables chain can
// stand in a rule as one word. iptables-restore reads rules as lines, so a name
// with a line break would be a rule of its own.
func ValidChainName(name string) bool { return validWord(name, ChainNameLen) }

// ValidDeviceName is ValidChainName for the name of a network device.
func ValidDeviceName(name string) bool { return validWord(name, DeviceNameLen) }

func validWord(s string, size int) bool {
	return s != "" && len(s) <= size && s[0] != '-' && s[0] != '!' &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"'\;{}@/`, r) })
}

// HashedName returns prefix and as many hex digits of SHA-512(what) as make size.
// Upstream's plugins make the names of an attachment's rules this way.
func HashedName(size int, prefix, what string) string {
	sum := sha512.Sum512([]byte(what))
	return (prefix + hex.EncodeToString(sum[:]))[:size]
}
