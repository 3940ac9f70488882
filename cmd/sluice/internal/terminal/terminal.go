// SPDX-License-Identifier: Apache-2.0

// Package terminal is what the tool does on a terminal beside printing: its size, a screen that is redrawn, and the progress of a
// long command. Each part does nothing where the output is no terminal. Nothing of it escapes names: the caller does.
package terminal

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Is reports whether f is a terminal.
func Is(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Of returns w if it is a terminal, nil otherwise.
func Of(w io.Writer) *os.File {
	if f, ok := w.(*os.File); ok && f != nil && Is(f) {
		return f
	}
	return nil
}

// Size returns the columns and rows of the terminal f, 0 and 0 when it is none or does not say.
func Size(f *os.File) (columns, rows int) {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(ws.Col), int(ws.Row)
}

// Cut shortens s to at most width characters, and puts an ellipsis in its middle: both ends of a name tell it from others.
func Cut(s string, width int) string {
	r := []rune(s)
	switch {
	case width <= 0:
		return ""
	case len(r) <= width:
		return s
	case width == 1:
		return "…"
	}
	head := width / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-1-head):])
}
