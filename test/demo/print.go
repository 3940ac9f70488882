// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// printer writes what the demo does, for people.
type printer struct {
	w       io.Writer
	colours bool
}

// Colours of ECMA-48 that both dark and light terminals show.
const (
	bold   = "1"
	red    = "1;31"
	green  = "32"
	cyan   = "1;36"
	dimmed = "2"
)

// newPrinter colours what it prints when f is a terminal and NO_COLOR is unset.
func newPrinter(f *os.File) *printer {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &printer{w: f, colours: err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (p *printer) paint(colour, text string) string {
	if !p.colours {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (p *printer) title(n int, text string) {
	fmt.Fprintf(p.w, "\n%s %s\n", p.paint(cyan, fmt.Sprintf("[%d]", n)), p.paint(bold, text))
}

// say prints one line below the title.
func (p *printer) say(format string, args ...any) {
	fmt.Fprintf(p.w, "    %s\n", fmt.Sprintf(format, args...))
}

// good prints a fact that was checked.
func (p *printer) good(format string, args ...any) {
	p.say("%s %s", p.paint(green, "ok"), fmt.Sprintf(format, args...))
}

// block prints a text as it is, indented.
func (p *printer) block(text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintf(p.w, "    %s %s\n", p.paint(dimmed, "|"), line)
	}
}

func (p *printer) done(d time.Duration) {
	p.say("%s", p.paint(dimmed, fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1000)))
}

func (p *printer) failed(text string) {
	p.say("%s %s", p.paint(red, "FAILED"), text)
}

func (p *printer) summary(d time.Duration) {
	fmt.Fprintf(p.w, "\n%s\n", p.paint(green, fmt.Sprintf("Every step worked, in %.1f s. Nothing is left.", d.Seconds())))
}
