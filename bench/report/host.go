// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Host describes the machine and the tools the figures belong to.
type Host struct {
	Kernel   string `json:"kernel"`
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	Go       string `json:"go"`
	Iptables string `json:"iptables"`
	// Load is the load average of the last minute before the run: anything far
	// from 0 is noise in the figures.
	Load string `json:"load_before"`
}

// ThisHost reads it. What cannot be found out is "unknown".
func ThisHost() Host {
	h := Host{Kernel: "unknown", CPU: "unknown", CPUs: runtime.NumCPU(), Go: runtime.Version(), Iptables: "unknown", Load: "unknown"}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		version, _, _ := strings.Cut(unix.ByteSliceToString(uts.Release[:]), "-") // the rest names a distribution's build
		h.Kernel = version + " " + unix.ByteSliceToString(uts.Machine[:])
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				h.CPU = strings.TrimSpace(v)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		h.Load, _, _ = strings.Cut(string(b), " ")
	}
	if out, err := exec.Command("iptables", "--version").Output(); err == nil {
		h.Iptables = strings.TrimSpace(string(out))
	}
	return h
}

// String is one line.
func (h Host) String() string {
	return fmt.Sprintf("kernel %s, %d x %s, %s, %s, load before %s", h.Kernel, h.CPUs, h.CPU, h.Go, h.Iptables, h.Load)
}
