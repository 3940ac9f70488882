// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

func TestHostName(t *testing.T) {
	ref := attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}
	a, b := HostName(ref, 0), HostName(ref, 1)
	if a == b || len(a) != 12 || a[:4] != "veth" || a != HostName(ref, 0) {
		t.Errorf("names %q, %q", a, b)
	}
}

func TestRandomMAC(t *testing.T) {
	a, b := RandomMAC(), RandomMAC()
	if a.String() == b.String() || a[0]&3 != 2 || b[0]&3 != 2 {
		t.Errorf("%s and %s, want two that are local and unicast", a, b)
	}
}
