// SPDX-License-Identifier: Apache-2.0

package pagetest

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var (
	update = flag.Bool("update", false, "draw the pictures of the documentation anew")
	draw   = flag.String("draw", "", "draw a picture of each view on each screen into this folder")
)

// pictures are those of the documentation, by screen and view.
func pictures(name, view string) string {
	file := map[string]string{
		"light/overview": "ui-overview.png", "dark/talk": "ui-map-dark.png", "light/connections": "ui-connections.png", "light/drops": "ui-drops.png",
		"dark/overview": "ui-overview-dark.png", "phone/overview": "ui-overview-phone.png",
	}[name+"/"+view]
	if file == "" {
		return ""
	}
	return filepath.Join("..", "..", "..", "..", "..", "docs", "images", file)
}

const (
	// cell is the size of the squares whose mean colours are compared: glyphs of another font or version differ in pixels, not in these.
	cell = 20
	// far is how different a mean may be, of 255, and most the part of the squares that may be more so.
	far  = 26
	most = 0.04
)

// comparePicture compares what is shown with the picture of the documentation, if there is one.
func comparePicture(t *testing.T, p *tab, name, view string) {
	t.Helper()
	file := pictures(name, view)
	if file == "" && *draw == "" {
		return
	}
	p.must(p.Eval(p.ctx(), "document.activeElement.blur(); scrollTo(0, 0); document.fonts.ready.then(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))))", nil))
	shot, err := p.Screenshot(p.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if *draw != "" {
		if err := os.WriteFile(filepath.Join(*draw, name+"-"+view+".png"), shot, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if file == "" {
		return
	}
	if *update {
		if err := os.WriteFile(file, smaller(t, shot), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; -update draws it", err)
	}
	if part := different(decode(t, want), decode(t, shot)); part > most {
		kept := filepath.Join(os.TempDir(), "sluice-"+filepath.Base(file))
		_ = os.WriteFile(kept, shot, 0o600)
		t.Errorf("%s: %.1f %% of it are another picture, at most %.0f %%; see %s, or draw it anew by -update", file, 100*part, 100*most, kept)
	}
}

func decode(t *testing.T, data []byte) image.Image {
	t.Helper()
	i, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// smaller is the picture with its 256 most frequent colours, for the repository.
func smaller(t *testing.T, data []byte) []byte {
	t.Helper()
	from := decode(t, data)
	b := from.Bounds()
	at := func(x, y int) color.RGBA {
		r, g, bl, _ := from.At(x, y).RGBA()
		return color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(bl >> 8), 255}
	}
	seen := map[color.RGBA]int{}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			seen[at(x, y)]++
		}
	}
	number := func(c color.RGBA) int { return int(c.R)<<16 | int(c.G)<<8 | int(c.B) }
	colours := slices.SortedFunc(maps.Keys(seen), func(x, y color.RGBA) int {
		return cmp.Or(cmp.Compare(seen[y], seen[x]), cmp.Compare(number(x), number(y)))
	})
	palette, nearest := color.Palette{}, map[color.RGBA]uint8{}
	for _, c := range colours[:min(256, len(colours))] {
		palette = append(palette, c)
	}
	for _, c := range colours {
		nearest[c] = uint8(palette.Index(c))
	}
	to := image.NewPaletted(b, palette)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			to.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// different is the part of two pictures that differs; pictures of other sizes differ as a whole.
func different(a, b image.Image) float64 {
	if a.Bounds() != b.Bounds() {
		return 1
	}
	cells, apart := 0, 0
	for y := a.Bounds().Min.Y; y < a.Bounds().Max.Y; y += cell {
		for x := a.Bounds().Min.X; x < a.Bounds().Max.X; x += cell {
			cells++
			square := image.Rect(x, y, x+cell, y+cell).Intersect(a.Bounds())
			ra, ga, ba := mean(a, square)
			rb, gb, bb := mean(b, square)
			if apartBy(ra, rb) > far || apartBy(ga, gb) > far || apartBy(ba, bb) > far {
				apart++
			}
		}
	}
	return float64(apart) / float64(cells)
}

func apartBy(x, y int) int { return max(x-y, y-x) }

func mean(i image.Image, square image.Rectangle) (r, g, b int) {
	n := square.Dx() * square.Dy()
	for y := square.Min.Y; y < square.Max.Y; y++ {
		for x := square.Min.X; x < square.Max.X; x++ {
			pr, pg, pb, _ := i.At(x, y).RGBA()
			r, g, b = r+int(pr>>8), g+int(pg>>8), b+int(pb>>8)
		}
	}
	return r / n, g / n, b / n
}

// The comparison can fail, and does not for a line of text.
func TestDifferent(t *testing.T) {
	blank := image.NewRGBA(image.Rect(0, 0, 400, 400))
	line, box := image.NewRGBA(blank.Bounds()), image.NewRGBA(blank.Bounds())
	for x := range 400 {
		line.Set(x, 7, color.White)
		for y := range 40 {
			box.Set(x, y, color.White)
		}
	}
	if part := different(blank, line); part > most {
		t.Errorf("a line is %v", part)
	}
	if part := different(blank, box); part < most {
		t.Errorf("a box is %v", part)
	}
	if different(blank, image.NewRGBA(image.Rect(0, 0, 400, 399))) != 1 {
		t.Error("another size is the same")
	}
}
