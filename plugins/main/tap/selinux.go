// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// selinuxMagic is SELINUX_MAGIC of <linux/magic.h>.
const selinuxMagic = 0xf97cff8c

// execLabel is the label of the next program that the thread executes.
const execLabel = "/proc/thread-self/attr/exec"

// kernelLabels is SELinux as the running kernel has it.
type kernelLabels struct{}

func (kernelLabels) Enabled() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/selinux", &fs) == nil && uint32(fs.Type) == selinuxMagic
}

// Run gives the label to the thread that starts the command, so the goroutine
// keeps to it: a label left on another thread would hit whatever it executes.
func (kernelLabels) Run(label string, argv []string) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := os.WriteFile(execLabel, []byte(label), 0); err != nil {
		return fmt.Errorf("set the label %q: %w", label, err)
	}
	defer func() { err = errors.Join(err, os.WriteFile(execLabel, nil, 0)) }()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// makeDevice makes the tap in the calling thread's network namespace. A tap has
// the label of the process that made it, and rules say who may open one: with a
// label asked for, and SELinux there, ip(8) makes it under that label, as
// upstream does.
func (p *plugin) makeDevice(s rtnl.TapSpec, label string) error {
	if label == "" || !p.SELinux.Enabled() {
		return rtnl.AddTap(s)
	}
	return p.SELinux.Run(label, tuntapAdd(s))
}

func tuntapAdd(s rtnl.TapSpec) []string {
	argv := []string{"ip", "tuntap", "add", "mode", "tap", "name", s.Name, "vnet_hdr"}
	if s.MultiQueue {
		argv = append(argv, "multi_queue")
	}
	for _, id := range []struct {
		key string
		v   *uint32
	}{{"user", s.Owner}, {"group", s.Group}} {
		if id.v != nil {
			argv = append(argv, id.key, strconv.FormatUint(uint64(*id.v), 10))
		}
	}
	return argv
}
