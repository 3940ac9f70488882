// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// colours marks text for a terminal; false prints it as it is.
type colours bool

func (c colours) wrap(code, s string) string {
	if !c || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (c colours) plain(s string) string  { return s }
func (c colours) bold(s string) string   { return c.wrap("1", s) }
func (c colours) dim(s string) string    { return c.wrap("2", s) }
func (c colours) red(s string) string    { return c.wrap("31", s) }
func (c colours) green(s string) string  { return c.wrap("32", s) }
func (c colours) yellow(s string) string { return c.wrap("33", s) }

// terminalWidth returns the columns of the terminal f is, 0 when it is none.
func terminalWidth(f *os.File) int {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(ws.Col)
}

// wantColours is true on a terminal that has not asked for none
// (https://no-color.org).
func wantColours(f *os.File) bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
