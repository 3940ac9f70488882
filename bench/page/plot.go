// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/stats"
)

// The size of a picture, in points: a phone shows it about as large.
const (
	width, barHeight, lineHeight = 360, 26, 230
	controlHeight                = 150
	fontSize                     = 9
	legendRow                    = 13
)

// The library writes colours as numbers. These stand for variables of the page's style sheet, so that a picture is right on a light and
// on a dark page.
var (
	ink  = color.RGBA{1, 2, 3, 255}
	grid = color.RGBA{1, 2, 4, 255}
)

// series is the colour of the i-th peer.
func series(i int) color.RGBA { return color.RGBA{1, 3, uint8(i % colours), 255} }

const colours = 8

// variables are the style sheet's names for them.
func variables() *strings.Replacer {
	pairs := []string{hex(ink), "var(--ink)", hex(grid), "var(--grid)", "font-family:Liberation Sans", "font-family:system-ui,'Liberation Sans',sans-serif"}
	for i := range colours {
		pairs = append(pairs, hex(series(i)), fmt.Sprintf("var(--s%d)", i))
	}
	return strings.NewReplacer(pairs...)
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }

// dashes and shapes tell the lines apart without colour.
var (
	dashes = [][]vg.Length{nil, {5, 2}, {1, 2}, {6, 2, 1, 2}, {8, 3}, {3, 3}, {1, 1}, {9, 2, 2, 2}}
	shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{}, draw.RingGlyph{}, draw.PlusGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}}
)

// picture draws the headline metric of a load: bars for the peers at one place of the axis, else a line for each peer.
func picture(f *record.File, l record.Load, metric string) (string, error) {
	if points := places(f, l, metric); len(points) == 1 {
		return bars(f, l, metric, points[0])
	}
	return lines(f, l, metric)
}

// places are where a load was measured.
func places(f *record.File, l record.Load, metric string) (at []int) {
	for _, p := range f.Points(l.Axis) {
		if slices.ContainsFunc(f.Peers, func(peer string) bool { return f.Find(l.Key(p, peer, metric)) != nil }) {
			at = append(at, p)
		}
	}
	return at
}

// headline is the metric of a load's picture.
func headline(metrics []string) string {
	for _, m := range []string{record.Median, record.Rate, record.P50} {
		if slices.Contains(metrics, m) {
			return m
		}
	}
	return metrics[0]
}

func newPlot(label string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.Color = ink, ink
		plain(&axis.Label.TextStyle)
		plain(&axis.Tick.Label)
	}
	lines := plotter.NewGrid()
	lines.Horizontal.Color, lines.Vertical.Color = grid, grid
	p.Add(lines)
	p.Y.Label.Text = label
	return p
}

// plain is the style of all text: none of it is a formula.
func plain(s *text.Style) {
	s.Color, s.Font.Variant, s.Font.Size = ink, "Sans", font.Length(fontSize)
	s.Handler = text.Plain{Fonts: font.DefaultCache}
}

// spread are medians with their MAD.
type spread struct {
	plotter.XYs
	plotter.YErrors
}

func bars(f *record.File, l record.Load, metric string, at int) (string, error) {
	p := newPlot("")
	var names []string
	for _, peer := range slices.Backward(f.Peers) { // the first one on top
		c := f.Find(l.Key(at, peer, metric))
		if c == nil {
			continue
		}
		y, m, mad := float64(len(names)), stats.Median(c.Samples), stats.MAD(c.Samples)
		bar, err := plotter.NewBarChart(plotter.Values{m}, vg.Points(barHeight*0.6))
		if err != nil {
			return "", err
		}
		bar.Horizontal, bar.XMin, bar.Color, bar.LineStyle.Width = true, y, series(slices.Index(f.Peers, peer)), 0
		far, err := plotter.NewXErrorBars(struct {
			plotter.XYs
			plotter.XErrors
		}{plotter.XYs{{X: m, Y: y}}, plotter.XErrors{{Low: mad, High: mad}}})
		if err != nil {
			return "", err
		}
		far.LineStyle.Color = ink
		p.Add(bar, far)
		names = append(names, f.Title(peer))
		p.X.Label.Text = metricTitle(l.Shape, metric) + ", " + c.Unit
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max, p.X.Min = -0.6, float64(len(names))-0.4, 0
	p.X.Tick.Marker = labels(0)
	return render(p, float64(len(names))*barHeight+40, nil)
}

func lines(f *record.File, l record.Load, metric string) (string, error) {
	p := newPlot("")
	p.X.Label.Text = axisTitle(l.Axis)
	var legend []entry
	for i, peer := range f.Peers {
		var s spread
		for _, at := range f.Points(l.Axis) {
			c := f.Find(l.Key(at, peer, metric))
			if c == nil {
				continue
			}
			mad := stats.MAD(c.Samples)
			s.XYs = append(s.XYs, plotter.XY{X: math.Log10(float64(max(1, at))), Y: stats.Median(c.Samples)})
			s.YErrors = append(s.YErrors, struct{ Low, High float64 }{mad, mad})
			p.Y.Label.Text = metricTitle(l.Shape, metric) + ", " + c.Unit
		}
		if len(s.XYs) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(s.XYs)
		if err != nil {
			return "", err
		}
		far, err := plotter.NewYErrorBars(s)
		if err != nil {
			return "", err
		}
		line.Color, line.Dashes, points.Color, points.Shape = series(i), dashes[i%len(dashes)], series(i), shapes[i%len(shapes)]
		far.LineStyle.Color = series(i)
		p.Add(line, far, points)
		legend = append(legend, entry{f.Title(peer), []plot.Thumbnailer{line, points}})
	}
	p.Y.Min = 0
	p.X.Tick.Marker = plot.ConstantTicks(ticksAt(f.Points(l.Axis)))
	p.Y.Tick.Marker = labels(0)
	return render(p, lineHeight, legend)
}

// controlPicture has a point for each metric of the control: how the second is to the first, between lines at the threshold.
func controlPicture(c Control) (string, error) {
	p := newPlot("second to first")
	p.X.Label.Text, p.X.Tick.Marker = "metrics, as in the table", labels(0)
	far := 2 * controlThreshold
	var same, differ plotter.XYs
	for i, r := range c.Rows {
		at := plotter.XY{X: float64(i + 1), Y: r.Ratio}
		switch {
		case math.IsNaN(r.Ratio):
			continue
		case r.Verdict == difference:
			differ = append(differ, at)
		default:
			same = append(same, at)
		}
		far = max(far, math.Abs(r.Ratio-1)*1.1)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, float64(len(c.Rows)+1), 1-far, 1+far
	for _, y := range []float64{1 - controlThreshold, 1 + controlThreshold} {
		line, err := plotter.NewLine(plotter.XYs{{X: 0, Y: y}, {X: p.X.Max, Y: y}})
		if err != nil {
			return "", err
		}
		line.Color, line.Dashes = ink, dashes[1]
		p.Add(line)
	}
	for i, points := range []plotter.XYs{same, differ} {
		if len(points) == 0 {
			continue
		}
		s, err := plotter.NewScatter(points)
		if err != nil {
			return "", err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: []color.Color{series(3), series(1)}[i], Radius: vg.Points(2.5), Shape: []draw.GlyphDrawer{draw.CircleGlyph{}, draw.CrossGlyph{}}[i]}
		p.Add(s)
	}
	return render(p, controlHeight, nil)
}

// ticksAt are the places of an axis, as the logarithm has them.
func ticksAt(points []int) (ticks []plot.Tick) {
	for _, at := range points {
		ticks = append(ticks, plot.Tick{Value: math.Log10(float64(max(1, at))), Label: thousands(float64(at), 0)})
	}
	return ticks
}

// labels are ticks that people can read: 20,000 and not 2e+04.
type labels int

func (labels) Ticks(lo, hi float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(lo, hi)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = thousands(t.Value, digits(hi))
		}
	}
	return ticks
}

type entry struct {
	name   string
	thumbs []plot.Thumbnailer
}

// render draws a plot, with a legend of two columns below it.
func render(p *plot.Plot, height float64, legend []entry) (string, error) {
	below := vg.Length((len(legend)+1)/2) * legendRow
	canvas := vgsvg.New(width, vg.Length(height)+below)
	whole := draw.New(canvas)
	p.Draw(draw.Crop(whole, 0, -6, below, -4))
	for column := range 2 {
		l := plot.NewLegend()
		plain(&l.TextStyle)
		l.Top, l.Left, l.ThumbnailWidth = true, true, vg.Points(24)
		for i := column; i < len(legend); i += 2 {
			l.Add(legend[i].name, legend[i].thumbs...)
		}
		l.Draw(draw.Crop(whole, vg.Length(column)*width/2+4, 0, 0, below-vg.Length(height)-below))
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return "", err
	}
	_, svg, found := strings.Cut(out.String(), "<svg ")
	if !found {
		return "", fmt.Errorf("the picture has no svg element: %.40q", out.String())
	}
	return `<svg role="img" ` + variables().Replace(svg), nil
}
