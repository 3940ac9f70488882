// SPDX-License-Identifier: Apache-2.0

package cniplugin

import (
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// The texts come from the CNI library; a new version of it may word them
// differently.
func TestNameCulprit(t *testing.T) {
	t.Setenv("CNI_IFNAME", "a/b")
	t.Setenv("CNI_CONTAINERID", "../x")
	tests := []struct {
		name string
		in   *types.Error
		want string
	}{
		{"interface name", utils.ValidateInterfaceName("a/b"), `invalid CNI_IFNAME "a/b": interface name contains / or : or whitespace characters`},
		{"long interface name", utils.ValidateInterfaceName("sixteen-letters1"), `invalid CNI_IFNAME "a/b": interface name is too long`},
		{"container ID", utils.ValidateContainerID("../x"), `invalid CNI_CONTAINERID "../x": invalid characters in containerID`},
		{"other", &types.Error{Code: cnierr.CodeConfig, Msg: "interface name"}, "interface name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, nameCulprit(tt.in).Msg); d != "" {
				t.Error(d)
			}
		})
	}
	if nameCulprit(nil) != nil {
		t.Error("an error from nothing")
	}
}
