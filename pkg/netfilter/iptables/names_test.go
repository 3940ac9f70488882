// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// The values were printed by the upstream plugins v1.9.1.
func TestNames(t *testing.T) {
	tests := []struct{ name, got, want string }{
		{"masquerade chain", masqChain(attachments.ID{Network: "test", ContainerID: "1234"}), "CNI-2bbe0c48b91a7d1b8a6753a8"},
		{"DNAT chain", dnatChain(attachments.ID{Network: "n1", ContainerID: "ctr1"}), "CNI-DN-c189d8b6a7b4d184c9f70"},
		{"old SNAT chain", oldSNATChain(attachments.ID{Network: "n1", ContainerID: "ctr1"}), "CNI-SN-c189d8b6a7b4d184c9f70"},
		{"DNAT comment", dnatComment(attachments.ID{Network: "n1", ContainerID: "ctr1"}), `dnat name: "n1" id: "ctr1"`},
		{"masquerade comment", masqComment(attachments.ID{Network: "n1", ContainerID: "ctr1"}), `name: "n1" id: "ctr1"`},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.got, tt.want)
		}
	}
	long := attachments.ID{Network: strings.Repeat("n", 150), ContainerID: strings.Repeat("c", 150), IfName: "eth0"}
	if n := len(dnatComment(long)); n > commentLen {
		t.Errorf("a comment of %d characters", n)
	}
	if _, ok := namesIn(dnatComment(long)); ok {
		t.Error("names were read from a comment that was cut")
	}
	second := attachments.ID{Network: "n", ContainerID: "c", IfName: "net1"}
	if got, ok := namesIn(secondComment(second)); got != second || !ok {
		t.Errorf("names in %s: %v, %v", secondComment(second), got, ok)
	}
	for _, c := range []string{dnatComment(attachments.ID{Network: "n", ContainerID: "c"}), masqComment(attachments.ID{Network: "n", ContainerID: "c"})} {
		if ref, ok := namesIn(c); ref.Network != "n" || ref.ContainerID != "c" || !ok {
			t.Errorf("%s: %v %v", c, ref, ok)
		}
	}
	if _, ok := namesIn("somebody else's"); ok {
		t.Error("names were read from somebody else's comment")
	}
}
