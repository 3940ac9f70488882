// SPDX-License-Identifier: Apache-2.0

package ipvlan

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// STATUS has no prevResult (CNI 1.1), so a chained ipvlan that works must not
// be called unconfigured for want of ipam or master.
func TestPrivilegedStatusChained(t *testing.T) {
	r := plugintest.New(t)
	r.Plug = New(Deps{IPAM: r.IPAM, Records: r.Dir})
	err := r.Verb(r.Plug.Status, plugintest.Call{})
	if err != nil && cnierr.From(err).Code != cnierr.CodeUnavailable { // 50: this kernel has no ipvlan
		t.Errorf("STATUS of a chained ipvlan: %v", err)
	}
}
