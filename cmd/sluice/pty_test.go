// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pty is a pseudo-terminal: what is written to user is read by a test as a person would see it, and keys are pressed.
type pty struct {
	user *os.File // the end that a process gets
	far  *os.File
	fd   int // of far, which stays non-blocking

	mu   sync.Mutex
	text strings.Builder
}

func newPTY(t *testing.T, columns, rows int) *pty {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	far := os.NewFile(uintptr(fd), "/dev/ptmx") // closing it ends its reader
	t.Cleanup(func() { _ = far.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = user.Close() })
	p := &pty{user: user, far: far, fd: fd}
	p.resize(t, columns, rows)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := far.Read(b)
			p.mu.Lock()
			p.text.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pty) resize(t *testing.T, columns, rows int) {
	t.Helper()
	if err := unix.IoctlSetWinsize(p.fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)}); err != nil {
		t.Fatal(err)
	}
}

func (p *pty) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := p.far.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

func (p *pty) seen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// await waits for text beyond what had been seen.
func (p *pty) await(t *testing.T, text string, seen int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s := p.seen()
		if seen <= len(s) && strings.Contains(s[seen:], text) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q was not shown:\n%q", text, s)
		}
	}
}

func (p *pty) mode(t *testing.T) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(p.user.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

// sequence is what a terminal obeys instead of showing it.
var sequence = regexp.MustCompile(`\x1b(\[[0-9?;]*[A-Za-z])`)

// lastScreen are the lines that were drawn last.
func lastScreen(s string) []string {
	at := strings.LastIndex(s, "\x1b[H")
	if at < 0 {
		return nil
	}
	s = strings.ReplaceAll(s[at:], "\r", "")
	return strings.Split(sequence.ReplaceAllString(s, ""), "\n")
}
