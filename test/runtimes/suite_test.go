// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// programs holds the binaries under test, built once for the whole suite.
var programs *testbin.Set

// workload is the program of the containers.
var workload string

func TestMain(m *testing.M) {
	code, err := build(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

// build runs the tests with what they need.
func build(run func() int) (code int, err error) {
	if programs, err = testbin.Build("sluice-agent"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, programs.Close()) }()
	dir, err := os.MkdirTemp("", "sluice-workload-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	workload = filepath.Join(dir, "workload")
	c := exec.Command("go", "build", "-trimpath", "-o", workload, "./workload")
	c.Env = append(os.Environ(), "CGO_ENABLED=0") // nothing else is in the container
	if out, err := c.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the workload: %w\n%s", err, out)
	}
	return run(), nil
}

// Places on a node, where its runtimes look for plugins and configurations and find what a container runs.
const (
	pluginDir = "/run/plugins"
	confDir   = "/etc/cni/net.d"
	rootDir   = "/run/rootfs"
	stateDir  = "/run/runtime" // of the runtime itself
)

// commandTime bounds one command of a runtime.
var commandTime = netlab.Patient(time.Minute)

// machine is a node that runs processes of its own: a runtime, its monitors and its containers. None of them is a child of this
// process for long. They live in a PID namespace, so that ending its first process ends them all.
type machine struct {
	*netlab.Lab
	t    *testing.T
	init int // the PID namespace's first process, as this process sees it
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{Lab: netlab.NewT(t), t: t}
	init := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "catatonit", "-P")
	if err := m.Node.Start(init); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.init == 0 { // it did not start; a kill of 0 would end this process and those that run it
			_ = init.Process.Kill()
		} else {
			_ = unix.Kill(m.init, unix.SIGKILL)
		}
		_ = init.Wait()
	})
	m.init = onlyChild(t, init.Process.Pid)
	m.layOurs()
	m.layRoot()
	return m
}

// onlyChild waits for the child of a process.
func onlyChild(t *testing.T, pid int) int {
	t.Helper()
	file := fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)
	for late := time.Now().Add(netlab.Patient(10 * time.Second)); time.Now().Before(late); time.Sleep(5 * time.Millisecond) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		child, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			continue
		}
		// Before it executes its program it has not mounted anything yet.
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child)); strings.TrimSpace(string(name)) == "catatonit" {
			return child
		}
	}
	t.Fatalf("process %d starts no init", pid)
	return 0
}

// command prepares a program of the machine.
func (m *machine) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.init), "--mount", "--net", "--pid", "--", name}, args...)...)
}

// try runs a program of the machine and returns what it prints.
func (m *machine) try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	c := m.command(ctx, name, args...)
	// What a runtime leaves running keeps its pipes.
	c.WaitDelay = time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// run is try of what must succeed.
func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	out, err := m.try(name, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// sluice runs the operator's tool.
func (m *machine) sluice(args ...string) string {
	m.t.Helper()
	return m.run(programs.Path("sluice"), args...)
}

// layOurs puts our plugins into place, as an operator does.
func (m *machine) layOurs() {
	m.t.Helper()
	m.sluice("install", pluginDir)
}

// layReference puts upstream's plugins there, as its packages do.
func (m *machine) layReference(names ...string) {
	m.t.Helper()
	dir, err := testbin.Reference(m.t.Context(), names...)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, name := range names {
		m.run("cp", "--remove-destination", filepath.Join(dir, name), pluginDir+"/")
	}
}

// layRoot makes the root file system of containers.
func (m *machine) layRoot() {
	m.t.Helper()
	m.run("mkdir", "-p", rootDir+"/proc", rootDir+"/sys", rootDir+"/dev", rootDir+"/etc", rootDir+"/run")
	m.run("cp", workload, rootDir+"/workload")
}

// write puts a file into the machine.
func (m *machine) write(name, text string) {
	m.t.Helper()
	if err := m.Node.Do(func() error {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		return os.WriteFile(name, []byte(text), 0o644)
	}); err != nil {
		m.t.Fatal(err)
	}
}

// snapshot is what a container must not change for good. The runtime's own state is the runtime's.
func (m *machine) snapshot() netlab.Snapshot {
	m.t.Helper()
	s, err := m.Node.Snapshot()
	if err != nil {
		m.t.Fatal(err)
	}
	// containerd keeps something of running pods there, wherever its own directories are.
	return s.Without("file "+rootDir, "file "+stateDir, "file /run/containerd/")
}

// unchanged wants the node to be as it was.
func (m *machine) unchanged(before netlab.Snapshot, after string) {
	m.t.Helper()
	if d := netlab.DiffSoon(before, m.snapshot); d != "" {
		m.t.Errorf("after %s (- gone, + left behind):\n%s", after, d)
	}
	if out := m.sluice("cleanup"); !strings.Contains(out, "Nothing to remove.") {
		m.t.Errorf("after %s: %s", after, out)
	}
}
