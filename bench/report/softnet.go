// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// QueueDrops returns how many packets the kernel has dropped since boot because
// a CPU's input queue was full. All namespaces share these queues: when the
// number grows while round trips or connections are measured, which never fill
// a queue, something else on the machine did, and the figures are its victims.
func QueueDrops() (uint64, error) {
	b, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, err
	}
	return sumQueueDrops(string(b))
}

// sumQueueDrops adds the second, hexadecimal, column of softnet_stat.
func sumQueueDrops(stat string) (sum uint64, err error) {
	for line := range strings.Lines(stat) {
		f := strings.Fields(line)
		if len(f) < 2 {
			return 0, fmt.Errorf("softnet_stat: line %q", line)
		}
		n, err := strconv.ParseUint(f[1], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("softnet_stat: %w", err)
		}
		sum += n
	}
	return sum, nil
}
