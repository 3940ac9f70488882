// SPDX-License-Identifier: Apache-2.0

// Package flame draws where programs spend their CPU time, from the samples of perf(1), as a flame graph: a box for each function, as wide
// as the time in it, on top of the box of its caller.
//
// "bench flame" is its only user. It must not start programs.
package flame

import (
	"bufio"
	"cmp"
	"fmt"
	"image/color"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Frame is a function with what it has called. The root stands for all programs.
type Frame struct {
	Name     string
	Kernel   bool
	Samples  int // in it and in what it has called
	children map[string]*Frame
}

// unknown is what perf calls a function without a symbol.
const unknown = "[unknown]"

// kernelBegins is where the addresses of the kernel begin on 64-bit machines.
const kernelBegins = 1 << 63

// Read reads what "perf script -F comm,ip,sym" prints. keep says which programs count.
func Read(r io.Reader, keep func(program string) bool) (*Frame, error) {
	root := &Frame{Name: "all"}
	var program string
	var stack []Frame // the innermost first
	end := func() {
		if program != "" && keep(program) {
			root.add(append(stack, Frame{Name: program}))
		}
		program, stack = "", nil
	}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "":
			end()
		case line[0] != ' ' && line[0] != '\t':
			program = strings.TrimSpace(line)
		default:
			ip, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			addr, err := strconv.ParseUint(ip, 16, 64)
			if err != nil {
				return nil, fmt.Errorf("line %q: %w", line, err)
			}
			frame := Frame{Name: cmp.Or(strings.TrimSpace(name), unknown), Kernel: addr >= kernelBegins}
			if n := len(stack); frame.Name == unknown && n > 0 && stack[n-1].Name == unknown {
				continue // a stack without frame pointers: one box says as much
			}
			stack = append(stack, frame)
		}
	}
	end()
	return root, lines.Err()
}

func (f *Frame) add(stack []Frame) {
	f.Samples++
	for _, s := range slices.Backward(stack) {
		if f.children[s.Name] == nil {
			if f.children == nil {
				f.children = map[string]*Frame{}
			}
			f.children[s.Name] = &Frame{Name: s.Name, Kernel: s.Kernel}
		}
		f = f.children[s.Name]
		f.Samples++
	}
}

// Children are the functions that f has called, by name.
func (f *Frame) Children() []*Frame {
	return slices.SortedFunc(maps.Values(f.children), func(a, b *Frame) int { return strings.Compare(a.Name, b.Name) })
}

// Sizes of the picture, in points.
const (
	width, row       = 900, 14
	fontSize         = 8
	charWidth        = fontSize * 0.55
	narrowest, inset = 2.5, 2
)

// Colours of boxes: the kernel's functions, those of Go's runtime, and others.
var (
	kernelColour  = color.RGBA{0xf2, 0xb0, 0x7a, 255}
	runtimeColour = color.RGBA{0xa9, 0xd1, 0x8e, 255}
	otherColour   = color.RGBA{0x9f, 0xc0, 0xe8, 255}
	edge          = color.RGBA{255, 255, 255, 255}
	ink           = color.RGBA{0x20, 0x20, 0x20, 255}
)

func (f *Frame) colour() color.Color {
	switch {
	case f.Kernel:
		return kernelColour
	case strings.HasPrefix(f.Name, "runtime.") || strings.HasPrefix(f.Name, "_rt0_"):
		return runtimeColour
	}
	return otherColour
}

// shown is how many rows of boxes there are that are wide enough.
func (f *Frame) shown(perSample float64) int {
	deepest := 0
	for _, c := range f.children {
		if float64(c.Samples)*perSample >= narrowest {
			deepest = max(deepest, c.shown(perSample))
		}
	}
	return 1 + deepest
}

// Draw writes the picture, in SVG.
func (f *Frame) Draw(w io.Writer) error {
	if f.Samples == 0 {
		return fmt.Errorf("no sample of these programs")
	}
	perSample := float64(width) / float64(f.Samples)
	canvas := vgsvg.New(width, vg.Length(f.shown(perSample)*row))
	face := font.From(plot.DefaultFont, fontSize)
	face.Variant = "Sans"
	style := text.Style{Color: ink, Font: face, Handler: text.Plain{Fonts: font.DefaultCache}}
	f.box(draw.New(canvas), style, 0, 0, perSample)
	_, err := canvas.WriteTo(w)
	return err
}

// box draws f and what it has called, from the point left and the row up.
func (f *Frame) box(c draw.Canvas, style text.Style, left float64, up int, perSample float64) {
	wide := float64(f.Samples) * perSample
	if wide < narrowest {
		return
	}
	x0, x1 := vg.Length(left), vg.Length(left+wide)
	y0, y1 := vg.Length(up*row), vg.Length((up+1)*row)
	corners := []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}}
	c.FillPolygon(f.colour(), corners)
	c.StrokeLines(draw.LineStyle{Color: edge, Width: 0.5}, append(corners, corners[0]))
	if label := f.label(wide); label != "" {
		c.FillText(style, vg.Point{X: x0 + inset, Y: y0 + (row-fontSize)/2}, label)
	}
	for _, child := range f.Children() {
		child.box(c, style, left, up+1, perSample)
		left += float64(child.Samples) * perSample
	}
}

// label is as much of the name as has room, without the path of a Go package.
func (f *Frame) label(wide float64) string {
	const fewest = 4
	name := f.Name
	path := name
	if i := strings.IndexAny(name, "(["); i > 0 { // a type may have a path too
		path = name[:i]
	}
	name = name[strings.LastIndex(path, "/")+1:]
	room := int((wide - 2*inset) / charWidth)
	switch {
	case len(name) <= room:
		return name
	case room < fewest:
		return ""
	}
	return name[:room-2] + ".."
}
