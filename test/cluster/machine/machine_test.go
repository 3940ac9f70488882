// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		log, err := os.ReadFile(m.Log("sleeper"))
		if err == nil && strings.HasPrefix(string(log), "started y\n") {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("log %q %v", log, err)
		}
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
	if err := m.Kill(); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// After a reboot the machine has the files that it had, and nothing else: no process, device, mount, or file of /run and the bpffs.
func TestPrivilegedReboot(t *testing.T) {
	m := launch(t)
	run := func(lines string) string {
		t.Helper()
		out, err := m.Shell(t.Context(), lines)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	if err := m.StartService(Service{Name: "sleeper", Args: []string{"/bin/sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	const ids = "cat /etc/machine-id /proc/sys/kernel/random/boot_id"
	before := strings.Fields(run(ids + `
ip link add there type veth peer name other; ip netns add pod; mkdir /sys/fs/bpf/x
mkdir /var/lib/kubelet/m; mount -t tmpfs tmpfs /var/lib/kubelet/m
touch /usr/kept /var/lib/cni/kept /run/lost /tmp/lost`))
	first, err := m.PID()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Reboot(t.Context()); err != nil {
			log, _ := os.ReadFile(m.Log("machine"))
			t.Fatalf("%v\n%s", err, log)
		}
	}
	if again, err := m.PID(); err != nil || again == first {
		t.Errorf("the first process was %d and is %d: %v", first, again, err)
	}
	if states, err := m.Services(); err != nil || len(states) != 0 {
		t.Errorf("services %v %v", states, err)
	}
	after := strings.Fields(run(ids))
	if len(after) != 2 || after[0] != before[0] || after[1] == before[1] {
		t.Errorf("ids of the machine and of the boot were %v, and are %v", before, after)
	}
	run("ls /usr/kept /var/lib/cni/kept")
	if got := run(`ls /run/lost /tmp/lost /sys/fs/bpf/x /run/netns/pod 2>/dev/null || true
grep ' /var/lib/kubelet/m ' /proc/self/mountinfo || true; ls /sys/class/net; pgrep -x sleep || true`); got != "lo" {
		t.Errorf("a machine that was started again has\n%s", got)
	}
}

// A process that has ended does not run, although its parent has not waited for it.
func TestIdentityOfEnded(t *testing.T) {
	p := exec.CommandContext(t.Context(), "true")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, p.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if id, err := identify(p.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%+v %v", id, err)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
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
