// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// Names of intermediate devices, as upstream has them: the prefix, then the
// beginning of a hash, 15 characters in all.
const (
	ifbPrefix = "bwp"
	ifbLength = 15
)

func hashedName(of string) string {
	sum := sha512.Sum512([]byte(of))
	return (ifbPrefix + hex.EncodeToString(sum[:]))[:ifbLength]
}

// referenceIFB is upstream's plugin's name. It does not say which interface
// of the container is meant.
func referenceIFB(ref attachments.ID) string { return hashedName(ref.Network + ref.ContainerID) }

// ownIFB is for an attachment whose reference name is taken by another interface
// of the same container.
func ownIFB(ref attachments.ID) string {
	return hashedName(ref.Network + "\x00" + ref.ContainerID + "\x00" + ref.IfName)
}

// isIFBName says whether a device may be Sluice's or upstream's.
func isIFBName(name string) bool {
	rest, ok := strings.CutPrefix(name, ifbPrefix)
	if !ok || len(name) != ifbLength {
		return false
	}
	return strings.Trim(rest, "0123456789abcdef") == ""
}

// claimedIFBs are the names that records of ref's container hold for other attachments. Both names of a device have the container in
// them. The zero ref stands for all containers and attachments.
func (p *plugin) claimedIFBs(ref attachments.ID) (map[string]bool, error) {
	list := func() ([]*attachments.Record, error) { return p.Records.ListOf(ref.ContainerID) }
	if ref == (attachments.ID{}) {
		list = func() ([]*attachments.Record, error) { return p.Records.List("") }
	}
	records, err := list()
	claimed := make(map[string]bool)
	for _, rec := range records {
		var s section
		if rec.ID == ref {
			continue
		}
		if ok, derr := rec.Section(Name, &s); ok && derr == nil && s.IFB != "" {
			claimed[s.IFB] = true
		}
	}
	return claimed, err
}
