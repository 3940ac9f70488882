// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
)

// conflicts looks for hostPorts on which sockets of the node wait.
func (f *Facts) conflicts() {
	if f.Config.HostPortConflicts == nodeconf.ConflictsAllow {
		return
	}
	var err error
	f.Conflicts, err = nodeports.Find(nodeports.Recorded(f.Records))
	f.note("sockets of the node on hostPorts", err)
	f.Holders = holders("/proc", f.Conflicts)
}

// holders returns the names of the programs that have the sockets of conflicts. A socket of the kernel has none.
func holders(proc string, conflicts []nodeports.Conflict) map[uint32]string {
	if len(conflicts) == 0 {
		return nil
	}
	wanted := make(map[string]uint32)
	for _, c := range conflicts {
		wanted["socket:["+strconv.FormatUint(uint64(c.Inode), 10)+"]"] = c.Inode
	}
	names := make(map[uint32]string)
	fds, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		inode, is := wanted[target]
		if err != nil || !is {
			continue
		}
		if name, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(fd)), "comm")); err == nil {
			names[inode] = strings.TrimSpace(string(name))
		}
	}
	return names
}

// reservers are runtimes that keep a socket on each port that they have published: podman's conmon, and CRI-O before 1.32.
func reservers() []string { return []string{"conmon", "crio"} }

// checkConflicts names hostPorts that take the traffic of a service of the node.
func checkConflicts(f *Facts) []Finding {
	var out []Finding
	for _, c := range f.Conflicts {
		holder := f.Holders[c.Inode]
		if slices.Contains(reservers(), holder) {
			continue
		}
		if holder == "" {
			holder = "the kernel, or a process that is not seen here"
		}
		out = append(out, Finding{"port-conflict", Warning, fmt.Sprintf("%s (%s): clients and processes of the node get the pod there", c, holder),
			"give the pod another hostPort, or a hostIP on which nothing waits; hostPortConflicts: refuse in /etc/sluice/config.json keeps new ones out"})
	}
	return out
}
