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

// A second place gets each line at its own level, with its own fields, and the first keeps its level.
func TestBeside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	l := New(Options{Level: "error", File: first}).Beside(Options{Level: "debug", File: second}, String("verb", "ADD"))
	l.Debug("small", String("a", "1"))
	l.Error("large")
	for path, want := range map[string][]string{first: {`"large"`}, second: {`"small"`, `"verb":"ADD"`, `"a":"1"`, `"large"`}} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s has no %s: %s", path, w, text)
			}
		}
		if path == first && strings.Contains(string(text), "small") {
			t.Errorf("the first place has another's lines: %s", text)
		}
	}
}

// What a user of the node has laid where a log is to be is not written to.
func TestPrivilegedLaidByUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, step := range []func() error{
		func() error { return os.Symlink(victim, at("link")) },
		func() error { return os.Lchown(at("link"), 1000, 1000) },
		func() error { return os.Symlink(at("target"), at("root-link")) },
		func() error { return os.WriteFile(at("file"), nil, 0o666) },
		func() error { return os.Chown(at("file"), 1000, 1000) },
		func() error { return os.Link(victim, at("hard")) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"link": "symbolic link of user 1000", "file": "belongs to user 1000", "hard": "2 names"} {
		if f, err := open(at(name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v", name, f, err)
		}
	}
	f, err := open(at("root-link"))
	if err != nil {
		t.Errorf("the administrator's own link: %v", err)
	}
	_ = f.Close()
	if text, err := os.ReadFile(victim); err != nil || string(text) != "secret\n" {
		t.Errorf("the victim has %q %v", text, err)
	}
}
