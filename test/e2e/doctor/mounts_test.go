// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// In a mount namespace with a bpffs of its own nothing is loaded. The tool says where it looked, and which process has the pins.
func TestPrivilegedOtherMountNamespace(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	w.AddPod(rt, "web")
	var out string
	w.DoOnNode(func() (err error) {
		const script = `unshare -m sh -ec "mount -t bpf bpffs /sys/fs/bpf; $0 status; $0 doctor || true"; true` // the outer shell has the pins
		out, err = netlab.Run("sh", "-c", script, e2etest.Programs.Dir+"/sluice")
		return err
	})
	for _, want := range []string{"Nothing is loaded", "looked at   /sys/fs/bpf", "mount namespace of process", "nsenter -m -t"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
