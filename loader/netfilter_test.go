// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// Netfilter is liberal about windows before the first packet takes the fast path, also where nothing has loaded conntrack yet (5.10 and
// 6.12 in QEMU), and whatever relearnSeconds is.
func TestPrivilegedLiberal(t *testing.T) {
	const key = "net/netfilter/nf_conntrack_tcp_be_liberal"
	e := newEnv(t)
	e.o.Config.Relearn = 0
	e.open()
	if v, err := sysctl.Get(key); err != nil || v != "1" {
		t.Errorf("%s is %q, want 1: %v", key, v, err)
	}
	e.ok(sysctl.Set(key, "0"))
	e.open()
	if v, err := sysctl.Get(key); err != nil || v != "1" {
		t.Errorf("%s is %q after the next verb, want 1: %v", key, v, err)
	}
	e.ok(sysctl.Set(key, "0"))
	e.o.Config.FastPath = nodeconf.FastPathOff
	e.open()
	if v, err := sysctl.Get(key); err != nil || v != "0" {
		t.Errorf("%s is %q without a fast path, want 0: %v", key, v, err)
	}
}
