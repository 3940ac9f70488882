// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// The value was printed by the upstream plugins v1.9.1.
func TestNames(t *testing.T) {
	if got, want := attachmentHash(attachments.ID{Network: "unit-test", ContainerID: "one", IfName: "eth0"}), "6fd94d501e58f0aa-287fc69eff0574a2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	long := attachments.ID{Network: strings.Repeat("n", 150), ContainerID: strings.Repeat("c", 150), IfName: "eth0"}
	if n := len(commentOf(long)); n > commentLen {
		t.Errorf("a comment of %d characters", n)
	}
}
