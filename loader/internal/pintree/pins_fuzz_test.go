// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/hook"
)

// The names of links are read back: what no device and hook has is no link of the loader's.
func FuzzLinkName(f *testing.F) {
	f.Add(LinkName(7, hook.All()[0]))
	f.Add("dev-1_x")
	f.Add("dev0_")
	f.Fuzz(func(t *testing.T, name string) {
		index, h, ok := ParseLinkName(name)
		if !ok {
			return
		}
		if again, same, ok := ParseLinkName(LinkName(index, h)); index <= 0 || !ok || again != index || same.Name != h.Name {
			t.Errorf("%q is hook %s of device %d", name, h.Name, index)
		}
	})
}
