// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeQEMU is a script in place of the emulator.
func fakeQEMU(t *testing.T, script string) *Emulator {
	t.Helper()
	name := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Emulator{Program: name, Accel: TCG}
}

func machine(t *testing.T) *Machine {
	t.Helper()
	dir := t.TempDir()
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return &Machine{Kernel: "vmlinux", Initrd: initrd, Mode: "run", Dir: filepath.Join(dir, "logs"), Timeout: 20 * time.Second}
}

func TestVersion(t *testing.T) {
	for script, want := range map[string]int{
		"echo 'QEMU emulator version 10.0.2 (Debian 1:10.0.2)'": 10, "echo 'QEMU emulator version 7.2.22'": 7, "echo what": 0, "exit 1": 0,
	} {
		_, major, err := fakeQEMU(t, script).Version(context.Background())
		if major != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %d %v", script, major, err)
		}
	}
}

// Every ending of the emulator gives an outcome, and only a status that came
// through the serial port counts as one of the tests.
func TestRun(t *testing.T) {
	tests := []struct {
		name, script     string
		finished, failed bool
		status           int
	}{
		{"passed", "echo 0 > $STATUS", true, false, 0},
		{"failed", `printf '1\r\n' > $STATUS`, true, false, 1},
		{"crashed", "true", false, false, 0},
		{"cut off", "printf '' > $STATUS", false, false, 0},
		{"no emulator", "echo no such machine >&2; exit 1", false, true, 0},
		{"too slow", "exec sleep 60", false, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := machine(t)
			if tt.name == "too slow" {
				m.Timeout = 300 * time.Millisecond
			}
			t.Setenv("STATUS", m.status())
			o, err := fakeQEMU(t, tt.script).Run(context.Background(), m)
			if err != nil {
				t.Fatal(err)
			}
			if o.Finished != tt.finished || o.Status != tt.status || (o.Err != nil) != tt.failed {
				t.Errorf("%+v", o)
			}
		})
	}
	if _, err := fakeQEMU(t, "").Run(context.Background(), &Machine{Initrd: "/nonexistent"}); err == nil {
		t.Error("a machine without initramfs was started")
	}
}

// What an earlier machine said is not taken for this one's.
func TestRunForgets(t *testing.T) {
	m := machine(t)
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{m.status(), m.Results(), m.Console()} {
		if err := os.WriteFile(f, []byte("0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if o, err := fakeQEMU(t, "true").Run(context.Background(), m); err != nil || o.Finished {
		t.Errorf("%+v %v", o, err)
	}
	if raw, err := os.ReadFile(m.Results()); err != nil || len(raw) > 0 {
		t.Errorf("results: %q %v", raw, err)
	}
}

func TestArgs(t *testing.T) {
	m := &Machine{Kernel: "k", Initrd: "i", Mode: "shell", Dir: "/d", Terminal: true}
	args := (&Emulator{Accel: TCG}).args(m, 400<<20)
	line := strings.Join(args, " ")
	for _, want := range []string{"-smp 1", "-m 1768", "-cpu max", "-no-reboot", "-serial mon:stdio", "-serial file:/d/results", "sluice.mode=shell", "panic=-1"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %s", want, line)
		}
	}
	if args := (&Emulator{Accel: KVM}).args(m, 0); !slices.Contains(args, "host") {
		t.Errorf("%v", args)
	}
	if args := strings.Join((&Emulator{Accel: Counted}).args(m, 0), " "); !strings.Contains(args, "-icount shift=0,sleep=off") || !strings.Contains(args, "erms=off") {
		t.Error(args)
	}
	if strings.Contains(line, "icount") {
		t.Error(line)
	}
}

func TestTrouble(t *testing.T) {
	file := filepath.Join(t.TempDir(), "console")
	text := "booting\r\n[    1.0] BUG: kernel NULL pointer dereference\r\nfine\r\n[    2.0] rcu: INFO: rcu_sched self-detected stall on CPU\r\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Trouble(file)
	want := []string{"[    1.0] BUG: kernel NULL pointer dereference", "[    2.0] rcu: INFO: rcu_sched self-detected stall on CPU"}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
}
