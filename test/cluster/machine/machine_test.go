// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Role {
		if err := Main(os.Args[2:]); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func launch(t *testing.T) *Machine {
	t.Helper()
	m := &Machine{Name: "sluice-machine", Dir: filepath.Join(t.TempDir(), "m"), Group: "sluice-cluster-test/" + strings.ReplaceAll(t.Name(), "/", "-")}
	t.Cleanup(func() {
		if err := m.Remove(); err != nil {
			t.Error(err)
		}
		if err := RemoveGroups(filepath.Dir(m.Group)); err != nil && !errors.Is(err, unix.EBUSY) {
			t.Error(err)
		}
	})
	if err := m.Launch(t.Context()); err != nil {
		log, _ := os.ReadFile(m.Log("machine"))
		t.Fatalf("%v\n%s", err, log)
	}
	return m
}

// What a machine writes is not on the real one, what the real one has in the folders of a node is not in it, and its processes are in its cgroups.
func TestPrivilegedIsolation(t *testing.T) {
	m := launch(t)
	run := func(lines string) string {
		t.Helper()
		out, err := m.Shell(t.Context(), lines)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	run("echo x > /usr/sluice-machine-was-here; mkdir -p /opt/cni/bin/x /sys/fs/bpf/x; echo 1 > /proc/sys/net/ipv4/ip_forward")
	for _, path := range []string{"/usr/sluice-machine-was-here", "/opt/cni/bin/x", "/sys/fs/bpf/x"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is on the real machine", path)
		}
	}
	if got := run("hostname; ls /etc/cni/net.d /var/lib/kubelet | grep -c . || true; ls /sys/class/net"); !strings.HasPrefix(got, "sluice-machine\n") || !strings.HasSuffix(got, "\nlo") {
		t.Errorf("a machine begins with\n%s", got)
	}
	if out := run("cat /proc/self/cgroup"); strings.Contains(out, "..") {
		t.Errorf("a command is outside of the machine's cgroups:\n%s", out)
	}
	if out := run("findmnt -no PROPAGATION /"); out != "shared" {
		t.Errorf("mounts are %s", out)
	}
}

// Services are started, stopped and started again. They and what they leave behind end with the machine.
func TestPrivilegedServices(t *testing.T) {
	m := launch(t)
	sleeper := Service{Name: "sleeper", Args: []string{"/bin/sh", "-c", "sleep 1000 & echo started $X; wait"}, Env: []string{"X=y"}}
	if err := m.StartService(sleeper); err != nil {
		t.Fatal(err)
	}
	if err := m.StartService(sleeper); err == nil {
		t.Error("a service is started twice")
	}
	if err := m.StopService("sleeper", unix.SIGKILL); err != nil {
		t.Error(err)
	}
	states, err := m.Services()
	if err != nil || states["sleeper"].Running || states["sleeper"].Exit != "killed" {
		t.Errorf("%+v %v", states, err)
	}
	if err := m.StartService(sleeper); err != nil {
		t.Error(err)
	}
	if err := m.StartService(Service{Name: "none", Args: []string{"/none"}}); err == nil {
		t.Error("a program that is not there is started")
	}
	pid, err := m.PID()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	if m.Running() {
		t.Error("a killed machine runs")
	}
	if _, err := identify(pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its first process: %v", err)
	}
	if log, err := os.ReadFile(m.Log("sleeper")); err != nil || !strings.HasPrefix(string(log), "started y\n") {
		t.Errorf("%q %v", log, err)
	}
	if err := m.Kill(); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// A pid of another process is not the machine's.
func TestIdentity(t *testing.T) {
	m := &Machine{Name: "m", Dir: t.TempDir()}
	id, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	id.Start += "0"
	if err := writeJSON(filepath.Join(m.Dir, processFile), id); err != nil {
		t.Fatal(err)
	}
	if m.Running() {
		t.Error("the process with the machine's pid is taken for it")
	}
	if err := m.Kill(); err != nil { // of this test
		t.Error(err)
	}
}
