// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Control sequences of xterm, which every terminal of today knows (ctlseqs, "DEC Private Mode Set").
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l" // alternate screen, no cursor, no wrapping of long lines
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	eol   = "\x1b[K" // clear to the end of the line
	eos   = "\x1b[J" // clear to the end of the screen
)

// poll is how often Wait looks at the size of the terminal: a resize shows within it.
const poll = 100 * time.Millisecond

// Screen is the alternate screen of a terminal.
type Screen struct {
	out, in *os.File // in is nil when no key can be read
	was     *unix.Termios
}

// OpenScreen switches out to its alternate screen, and in to single keys without echo if it is a terminal too. The caller must Close it.
func OpenScreen(in, out *os.File) (*Screen, error) {
	s := &Screen{out: out}
	if in != nil && Is(in) {
		was, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
		if err != nil {
			return nil, fmt.Errorf("read the terminal's mode: %w", err)
		}
		mode := *was
		mode.Lflag &^= unix.ICANON | unix.ECHO
		mode.Cc[unix.VMIN], mode.Cc[unix.VTIME] = 0, 0
		mode.Cc[unix.VSUSP] = 0 // a stopped process would leave the shell on this screen
		if err := unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &mode); err != nil {
			return nil, fmt.Errorf("set the terminal's mode: %w", err)
		}
		s.in, s.was = in, was
	}
	if _, err := io.WriteString(out, enter); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Size returns the columns and rows, 80 and 24 when the terminal does not say.
func (s *Screen) Size() (columns, rows int) {
	columns, rows = Size(s.out)
	if columns == 0 || rows == 0 {
		return 80, 24
	}
	return columns, rows
}

// Draw shows text, in place of what was drawn before. Lines beyond the last row are left out.
func (s *Screen) Draw(text string) error {
	_, rows := s.Size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > rows {
		lines = lines[:rows]
	}
	_, err := io.WriteString(s.out, home+strings.Join(lines, eol+"\r\n")+eol+eos)
	return err
}

// Event is why Wait has returned.
type Event int

// The events.
const (
	Elapsed Event = iota // the time has come
	Resized
	Quit // the key q, the end of ctx, or a terminal that has gone
)

// Wait returns at until, or at the first other event.
func (s *Screen) Wait(ctx context.Context, until time.Time) Event {
	columns, rows := s.Size()
	for {
		if ctx.Err() != nil || s.quit() {
			return Quit
		}
		left := time.Until(until)
		if left <= 0 {
			return Elapsed
		}
		if c, r := s.Size(); c != columns || r != rows {
			return Resized
		}
		timer := time.NewTimer(min(left, poll))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

// quit reads the keys that were pressed. Nothing waits: VMIN and VTIME are 0.
func (s *Screen) quit() bool {
	if s.in == nil {
		return false
	}
	var keys [64]byte
	n, err := unix.Read(int(s.in.Fd()), keys[:])
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		return false
	}
	return err != nil || strings.ContainsAny(string(keys[:max(n, 0)]), "qQ\x03")
}

// Close leaves the terminal as it was.
func (s *Screen) Close() error {
	_, err := io.WriteString(s.out, leave)
	if s.in != nil {
		// TCSETSF: keys that were not read are not for the shell.
		err = errors.Join(err, unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETSF, s.was))
	}
	return err
}
