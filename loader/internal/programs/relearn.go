// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"io/fs"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// beLiberalKey makes netfilter conntrack accept TCP packets outside of the window that it knows.
const beLiberalKey = "net/netfilter/nf_conntrack_tcp_be_liberal"

// relearn returns for how many seconds a connection takes the fast path before the stack has to see it again.
//
// Netfilter conntrack misses the packets of the fast path. It would call the next one of the same TCP connection invalid, and
// kube-proxy's rules drop those. So conntrack has to be liberal first, as the kernel's own flow tables make it for what they
// forward (flow_offload_ct_tcp). Where it cannot be, connections are not relearned: they would end.
func (sets Sets) relearn() uint32 {
	c := sets.Config
	if c.Relearn == 0 || c.FastPath == nodeconf.FastPathOff {
		return 0
	}
	v, err := sysctl.Get(beLiberalKey)
	if err == nil && v != "1" {
		err = sysctl.Set(beLiberalKey, "1")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without it there is no conntrack
		sets.Log.Warn("connections keep to the fast path: conntrack would call packets of the slow path invalid",
			log.String("sysctl", beLiberalKey), log.Error(err))
		return 0
	}
	return c.Relearn
}

// relearnClock returns seconds in units of cfg_relearn (bpf/lib/base/config.h), rounded down.
func relearnClock(seconds uint32) uint32 { return uint32(uint64(seconds) * 1e9 >> 20) }
