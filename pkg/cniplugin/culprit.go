// SPDX-License-Identifier: Apache-2.0

package cniplugin

import (
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// nameCulprit adds the variable and its value to the skeleton's error about a
// malformed one; it says only what is wrong with it.
func nameCulprit(e *types.Error) *types.Error {
	if e == nil || e.Code != cnierr.CodeEnvironment {
		return e
	}
	for prefix, key := range map[string]string{"interface name": "CNI_IFNAME", "invalid characters in containerID": "CNI_CONTAINERID"} {
		if strings.HasPrefix(e.Msg, prefix) {
			return &types.Error{Code: e.Code, Msg: fmt.Sprintf("invalid %s %q: %s", key, os.Getenv(key), e.Msg), Details: e.Details}
		}
	}
	return e
}
