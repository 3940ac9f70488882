// SPDX-License-Identifier: Apache-2.0

package log

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	for range 2 { // two processes append, none truncates
		l := New(Options{Level: "info", File: path, Name: "bridge"})
		l.Info("made it", String(KeyIfName, "eth0"))
		l.Debug("hidden")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d lines, want 2:\n%s", len(lines), b)
	}
	var entry map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &entry); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]string{"msg": "made it", "level": "info", KeyIfName: "eth0", KeyPlugin: "bridge"} {
		if entry[k] != want {
			t.Errorf("%s = %v, want %s", k, entry[k], want)
		}
	}
}

func TestRefusesStdout(t *testing.T) {
	t.Parallel()
	fi, err := os.Stdout.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if null, err := os.Stat(os.DevNull); err == nil && os.SameFile(fi, null) {
		t.Log("stdout is /dev/null here, which is harmless")
		return
	}
	if f, err := open("/dev/stdout"); err == nil {
		f.Close()
		t.Error("stdout was taken as a log file")
	}
}

func TestBadOptionsStillLog(t *testing.T) {
	t.Parallel()
	if New(Options{Level: "loud", File: "/no/such/dir/log"}) == nil {
		t.Error("no logger")
	}
}

// A pipe without a reader would hold up the pod that writes the first line.
func TestRefusesPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, reader := range []bool{false, true} {
		if reader {
			r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
		}
		if f, err := open(path); err == nil {
			f.Close()
			t.Errorf("with a reader %t: a pipe was taken as a log file", reader)
		}
	}
}
