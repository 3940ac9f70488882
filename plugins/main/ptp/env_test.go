// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// stage is a rig with the plugin and a pod.
type stage struct {
	*plugintest.Rig
	pod *netlab.Pod
}

func newStage(t *testing.T) *stage {
	t.Helper()
	r := plugintest.New(t)
	r.Plug = New(deps(r))
	return &stage{r, r.Pod("pod")}
}

func deps(r *plugintest.Rig) Deps {
	open, existing := plugintest.Openers(r.DP)
	return Deps{
		IPAM: r.IPAM, Records: r.Dir,
		Opener: Opener{Open: open, OpenExisting: existing},
	}
}

// call is the ADD of the pod's eth0, masqueraded.
func (s *stage) call() plugintest.Call {
	return plugintest.Call{Netns: s.pod.Path, Conf: map[string]any{"ipMasq": true, "ipam": map[string]any{"type": "fake"}}}
}
