// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/terminal"
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

// painted are the sequences that wrap writes.
var painted = regexp.MustCompile("\x1b\\[(0|1|2|31|32|33)m")

// visible is the function of that name for text that wrap has been over.
func (c colours) visible(s string) string {
	if !c {
		return visible(s)
	}
	var b strings.Builder
	for {
		at := painted.FindStringIndex(s)
		if at == nil {
			return b.String() + visible(s)
		}
		b.WriteString(visible(s[:at[0]]) + s[at[0]:at[1]])
		s = s[at[1]:]
	}
}

// visible writes out what a terminal would obey instead of show. The kernel lets a device be called nearly anything, a pod calls
// its devices what it likes, and a physical one comes back to the node with its name.
func visible(s string) string {
	if !strings.ContainsFunc(s, obeyed) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case !obeyed(r):
			b.WriteRune(r)
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// obeyed says that a rune is none that is seen. A line break is wanted: errors and version have several lines.
func obeyed(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) || r == utf8.RuneError }

// wantColours is true on a terminal that has not asked for none
// (https://no-color.org).
func wantColours(f *os.File) bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return terminal.Is(f)
}
