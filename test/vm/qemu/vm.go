// SPDX-License-Identifier: Apache-2.0

// Package qemu runs a kernel and an initramfs in QEMU and collects what they
// write to three serial ports: the console, the report of the tests, and the
// exit status. Nothing else connects a machine with its host: no disk, no
// network.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MinMajor is the oldest QEMU that runs the tests. 7.2 miscomputes flags after
// cmpxchg16b, which crashes kernels at random.
const MinMajor = 10

// Emulator is a QEMU for x86-64.
type Emulator struct {
	// Program is qemu-system-x86_64.
	Program string
	// Root is the directory of unpacked packages it came from, "" when it is
	// installed.
	Root string
	// Accel is TCG, Counted or KVM.
	Accel string
}

// What runs a machine's instructions.
const (
	// TCG is software emulation in real time.
	TCG = "tcg,thread=multi"
	// Counted is emulation whose clock shows how many instructions were run, a
	// nanosecond each, and goes on to the next timer at once when there is nothing
	// to run. So no test waits, and none is late because this host does something
	// else; and what is timed inside does not depend on what translating code costs,
	// which an emulator does when it first meets it.
	Counted = "tcg,thread=single"
	// KVM is the processor's own virtualisation.
	KVM = "kvm"
)

var versionText = regexp.MustCompile(`version (\d+)\.\S+`)

// Version returns the emulator's version and its first number.
func (e *Emulator) Version(ctx context.Context) (text string, major int, err error) {
	out, err := e.command(ctx, "--version").Output()
	if err != nil {
		return "", 0, fmt.Errorf("%s --version: %w", e.Program, err)
	}
	m := versionText.FindStringSubmatch(string(out))
	if m == nil {
		return "", 0, fmt.Errorf("%s --version: %q", e.Program, out)
	}
	major, err = strconv.Atoi(m[1])
	return strings.TrimPrefix(m[0], "version "), major, err
}

// Unpacked returns the emulator in a tree of unpacked packages.
func Unpacked(root string) *Emulator {
	return &Emulator{Program: filepath.Join(root, "usr/bin/qemu-system-x86_64"), Root: root, Accel: TCG}
}

func (e *Emulator) command(ctx context.Context, args ...string) *exec.Cmd {
	if e.Root == "" {
		return exec.CommandContext(ctx, e.Program, args...)
	}
	share := filepath.Join(e.Root, "usr/share")
	args = append([]string{"-L", filepath.Join(share, "qemu"), "-L", filepath.Join(share, "seabios")}, args...)
	cmd := exec.CommandContext(ctx, e.Program, args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(e.Root, "usr/lib/x86_64-linux-gnu")+":"+filepath.Join(e.Root, "lib/x86_64-linux-gnu"))
	return cmd
}

// Machine is one to boot.
type Machine struct {
	// Kernel is an ELF vmlinux, Initrd an uncompressed initramfs.
	Kernel, Initrd string
	// Mode is what the guest's init is told: "run", "exec", "shell" or "true".
	Mode string
	// Dir gets console.log, results and status.
	Dir string
	// Timeout ends the machine.
	Timeout time.Duration
	// Memory is how many megabytes it has beside those for its files and tests.
	Memory int64
	// Terminal connects the console with this process's, for a shell.
	Terminal bool
}

// Outcome is how a machine ended.
type Outcome struct {
	// Status is the exit status of what ran inside. Without Finished there is
	// none: the kernel crashed, the time was over, the emulator failed.
	Status   int
	Finished bool
	Seconds  float64
	// CPU is the processor time that the emulator took, in seconds.
	CPU float64
	// Err is what the emulator had to say.
	Err error
}

// Console and Results are the files in Machine.Dir.
func (m *Machine) Console() string { return filepath.Join(m.Dir, "console.log") }
func (m *Machine) Results() string { return filepath.Join(m.Dir, "results") }
func (m *Machine) status() string  { return filepath.Join(m.Dir, "status") }

// Run boots m and waits for its end. The error says that nothing was started.
func (e *Emulator) Run(ctx context.Context, m *Machine) (*Outcome, error) {
	st, err := os.Stat(m.Initrd)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return nil, err
	}
	for _, f := range []string{m.Console(), m.Results(), m.status()} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	cmd := e.command(ctx, e.args(m, st.Size())...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if m.Terminal {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no emulator without its runner
	start := time.Now()
	err = cmd.Run()
	o := &Outcome{Seconds: time.Since(start).Seconds()}
	if p := cmd.ProcessState; p != nil {
		o.CPU = (p.UserTime() + p.SystemTime()).Seconds()
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		o.Err = errors.New("interrupted")
	case ctx.Err() != nil:
		o.Err = fmt.Errorf("the machine ran longer than %v", m.Timeout)
	case err != nil:
		o.Err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	o.Status, o.Finished = readStatus(m.status())
	return o, nil
}

// NIC is the hardware address of the machine's network card, which leads
// nowhere: it is there for plugins that move cards.
const NIC = "52:54:00:51:1c:e0"

// args is the command line. One CPU: with several, patching of running code
// trips over stale instructions. "-no-reboot" and "panic=-1": every end of the
// kernel is an end of the emulator. No mitigations, no pages zeroed ahead of their use: an
// emulated processor has none of the flaws, and both together cost a fifth of a run.
// The HPET keeps the time: the local APIC's timer is calibrated by a loop of PAUSE,
// which takes the emulator as long as the rest of a boot.
func (e *Emulator) args(m *Machine, initrd int64) []string {
	cpu := "max"
	var clock []string
	switch e.Accel {
	case KVM:
		cpu = "host"
	case Counted:
		// A repeated string instruction counts once for each repetition. Linux clears and
		// copies pages by bytes where these two are set, by 8 bytes otherwise.
		cpu = "max,erms=off,fsrm=off"
		clock = []string{"-icount", "shift=0,sleep=off"}
	}
	console := "file:" + m.Console()
	if m.Terminal {
		console = "mon:stdio"
	}
	return append(clock,
		"-M", "q35", "-cpu", cpu, "-accel", e.Accel, "-smp", "1", "-m", strconv.FormatInt(memory(initrd)+m.Memory, 10),
		"-display", "none", "-vga", "none", "-nodefaults", "-no-user-config", "-no-reboot",
		"-kernel", m.Kernel, "-initrd", m.Initrd,
		"-append", "console=ttyS0 quiet loglevel=3 panic=-1 oops=panic mitigations=off init_on_alloc=0 nolapic_timer no_timer_check sluice.mode="+m.Mode,
		"-device", "virtio-net-pci,romfile=,mac="+NIC,
		"-serial", console, "-serial", "file:"+m.Results(), "-serial", "file:"+m.status(),
	)
}

// memory returns megabytes for an initramfs of so many bytes: twice its size,
// since the archive and the files exist side by side for a moment, and room to
// work in. Too little does not fail loudly: files are missing.
func memory(initrd int64) int64 { return 768 + 5*(initrd>>20)/2 }

func readStatus(file string) (int, bool) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	return n, err == nil
}

// trouble is what a healthy kernel never prints.
var trouble = regexp.MustCompile(`(?m)^.*(Oops|Kernel panic|BUG:|general protection|KASAN|rcu.*stall|soft lockup|hung_task|Out of memory).*$`)

// Trouble returns the alarming lines of a console.
func Trouble(console string) ([]string, error) {
	f, err := os.Open(console)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, line := range trouble.FindAllString(string(raw), 20) {
		out = append(out, strings.TrimSpace(line))
	}
	return out, nil
}

// ProbeKVM reports whether a machine really boots with hardware
// virtualisation; that /dev/kvm exists says little inside another virtual
// machine.
func (e *Emulator) ProbeKVM(ctx context.Context, kernel, initrd, dir string) bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	with := &Emulator{Program: e.Program, Root: e.Root, Accel: KVM}
	o, err := with.Run(ctx, &Machine{Kernel: kernel, Initrd: initrd, Mode: "true", Dir: dir, Timeout: 30 * time.Second})
	return err == nil && o.Finished && o.Status == 0 && o.Err == nil
}
