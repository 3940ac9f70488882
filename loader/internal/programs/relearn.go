// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"io/fs"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// beLiberalKey makes netfilter conntrack accept TCP packets outside of the window that it knows.
const beLiberalKey = "net/netfilter/nf_conntrack_tcp_be_liberal"

// beLiberal makes netfilter liberal about windows, and reports whether it is.
//
// Netfilter conntrack misses the packets of the fast path. It would call the next one of the same TCP connection invalid, and
// kube-proxy's rules drop those. So conntrack has to be liberal first, as the kernel's own flow tables make it for what they
// forward (flow_offload_ct_tcp). Where it cannot be, a TCP connection that netfilter tracks keeps to the slow path.
//
// The module is loaded if it is not there: a firewall that is started later would load it, and nobody would make it liberal before
// the next ADD. It costs packets nothing before a rule asks for it.
func beLiberal(t *pintree.Tree) bool {
	if t.Config.FastPath == nodeconf.FastPathOff {
		return false
	}
	v, err := sysctl.Get(beLiberalKey)
	if errors.Is(err, fs.ErrNotExist) && rtnl.LoadConntrack() == nil {
		v, err = sysctl.Get(beLiberalKey)
	}
	if err == nil && v != "1" {
		err = sysctl.Set(beLiberalKey, "1")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the kernel has no conntrack
		t.Log.Warn("TCP connections that netfilter tracks keep to the slow path: it would call packets behind the fast path invalid",
			log.String("sysctl", beLiberalKey), log.Error(err))
		return false
	}
	return true
}

// relearnClock returns seconds in units of cfg_relearn (bpf/lib/base/config.h), rounded down.
func relearnClock(seconds uint32) uint32 { return uint32(uint64(seconds) * 1e9 >> 20) }
