// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// The variables by which this program, executed as a plugin, runs the real one as "ip netns exec" would.
const (
	envReal  = "SLUICE_TEST_REAL"  // the plugin
	envStage = "SLUICE_TEST_STAGE" // how far it has come
	envBare  = "SLUICE_TEST_BARE"  // the machine has no bpffs either
)

// asNetnsExec is main() of the program as a plugin. Its stages are the first process of a machine, which has the mounts of
// the node, and a process that covers /sys in a mount namespace of its own.
func asNetnsExec() (ran bool) {
	real := os.Getenv(envReal)
	if real == "" {
		return false
	}
	var err error
	switch os.Getenv(envStage) {
	case "":
		// In a cgroup namespace the root of cgroup v2 is the test's own cgroup.
		err = nextStage("first", syscall.CLONE_NEWPID|syscall.CLONE_NEWNS|syscall.CLONE_NEWCGROUP)
	case "first":
		err = firstProcess()
	default:
		err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Unmount("/sys", unix.MNT_DETACH), unix.Mount("sysfs", "/sys", "sysfs", 0, ""))
		if err == nil {
			err = unix.Exec(real, []string{real}, os.Environ())
		}
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func firstProcess() error {
	bare := os.Getenv(envBare) != ""
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
	if err == nil && bare {
		err = unix.Unmount("/sys/fs/bpf", unix.MNT_DETACH)
	}
	if err == nil {
		err = nextStage("second", syscall.CLONE_NEWNS)
	}
	if err != nil || !bare || filepath.Base(os.Getenv(envReal)) != "portmap" { // a plugin that needs the datapath
		return err
	}
	pins := 0
	err = filepath.WalkDir("/sys/fs/bpf/sluice", func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			pins++
		}
		return err
	})
	if err == nil && pins == 0 {
		err = errors.New("/sys/fs/bpf has no pins")
	}
	return err
}

func nextStage(name string, flags uintptr) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envStage+"="+name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// underNetnsExec returns a directory of plugins that run the ones under test so.
func underNetnsExec(t *testing.T, more string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range testbin.Plugins() {
		script := fmt.Sprintf("#!/bin/sh\nexport %s=%s %s\nexec %s\n", envReal, e2etest.Programs.Path(name), more, self)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// "ip netns exec" gives each process mounts of its own, in which /sys has no bpffs and no cgroups, and which end with it.
// What the plugins pin is where the machine's first process has it.
func TestPrivilegedNetnsExec(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.RuntimeFrom(fullChain(), underNetnsExec(t, ""))
	pods := make([]*e2etest.Pod, 2)
	for i, name := range []string{"one", "two"} { // the second finds what the first has loaded
		pods[i] = w.AddPod(rt, name, e2etest.TCP(8081+i, 80))
		e2etest.Serve(t, pods[i], name, ":80")
	}
	for _, fam := range e2etest.Families() {
		for i, name := range []string{"one", "two"} {
			for _, from := range []e2etest.Place{w.Client(), w.Node} {
				if got := e2etest.Ask(t, from, "tcp", e2etest.At(fam.Node(w.Client()), 8081+uint16(i))).Server; got != name {
					t.Errorf("%s: %s answers for %s", fam.Name, got, name)
				}
			}
		}
	}
	if s := w.Status().Local; !s.Attached {
		t.Errorf("status from outside: %+v", s)
	}
	for _, p := range pods {
		if err := p.Check(); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		p.MustDel()
	}
}

// Where no bpffs is mounted yet, it is mounted for the machine, not for the process.
func TestPrivilegedNetnsExecMounts(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.NewPod(w.RuntimeFrom(fullChain(), underNetnsExec(t, envBare+"=1")), "web", e2etest.TCP(8080, 80))
	p.MustAdd() // firstProcess() looks
}
