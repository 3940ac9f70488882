// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/loadapi"
)

// Root of a user namespace has all capabilities and may not use them for programs: rootless runtimes get netfilter.
func TestPrivilegedUserNamespace(t *testing.T) {
	const inside = "SLUICE_TEST_IN_USERNS"
	if os.Getenv(inside) != "" {
		var no loadapi.UnsupportedError
		if err := programs.AskCapabilities(); !errors.As(err, &no) || !strings.Contains(no.Why, "user namespace") {
			t.Errorf("in a user namespace: %v", err)
		}
		return
	}
	if err := programs.AskCapabilities(); err != nil {
		t.Errorf("outside: %v", err)
	}
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestPrivilegedUserNamespace$", "-test.count=1")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
