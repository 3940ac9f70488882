// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/hook"
)

func TestParseLinkName(t *testing.T) {
	for _, h := range hook.All() {
		index, got, ok := ParseLinkName(LinkName(12, h))
		if !ok || index != 12 || got.Name != h.Name || got.Egress != h.Egress {
			t.Errorf("%s: %d %v %t", LinkName(12, h), index, got, ok)
		}
	}
	for _, bad := range []string{"", "dev", "dev1", "dev1_x", "eth0_pod_egress", "dev0_pod_egress", "devx_pod_egress"} {
		if _, _, ok := ParseLinkName(bad); ok {
			t.Errorf("%q was taken for a link of ours", bad)
		}
	}
}
