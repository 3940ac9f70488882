// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"os"
	"strings"

	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// openNetns opens a handle inside a network namespace.
func openNetns(path string) (*rtnl.Handle, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return rtnl.NewIn(ns)
}

// legacyTables are the tables that iptables-legacy has in the kernel. /proc/thread-self is of the calling thread's network namespace.
func legacyTables(file string) []string {
	b, err := os.ReadFile("/proc/thread-self/net/" + file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}
