// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/chromium"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A browser shows the page on a desk, in the dark and on a phone: it fits, each picture is drawn in the screen's colours, nothing is
// fetched and nothing is complained about.
func TestPrivilegedRendered(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(mustHTML(t, run(0))), 0o644); err != nil {
		t.Fatal(err)
	}
	browser := chromium.StartT(t, netlab.NewT(t).Node.NS)
	ctx, cancel := context.WithTimeout(t.Context(), netlab.Patient(2*time.Minute))
	defer cancel()
	inks := map[string]bool{}
	for name, screen := range map[string]chromium.Screen{
		"light": {Width: 1280, Height: 860}, "dark": {Width: 1280, Height: 860, Dark: true}, "phone": {Width: 360, Height: 740},
	} {
		p, err := browser.Page(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Show(ctx, screen); err != nil {
			t.Fatal(err)
		}
		if err := p.Open(ctx, "file://"+file); err != nil {
			t.Fatal(err)
		}
		if err := p.Await(ctx, "document.readyState === 'complete' && document.querySelectorAll('svg').length > 5"); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Wide, Narrow, Small float64
			Ink                 string
		}
		if err := p.Eval(ctx, `({
			Wide: document.documentElement.scrollWidth,
			Narrow: Math.min(...[...document.querySelectorAll('svg')].map((s) => s.getBoundingClientRect().width)),
			Small: Math.min(...[...document.querySelectorAll('svg text')].map((s) => s.getBoundingClientRect().height)),
			Ink: getComputedStyle(document.querySelector('svg text')).fill,
		})`, &got); err != nil {
			t.Fatal(err)
		}
		if got.Wide > float64(screen.Width) {
			t.Errorf("%s: the page is %v pixels wide", name, got.Wide)
		}
		if got.Narrow < 300 || got.Small < 8 {
			t.Errorf("%s: a picture is %v pixels wide, a text in one %v high", name, got.Narrow, got.Small)
		}
		inks[got.Ink] = true
		for _, problem := range p.Problems() {
			t.Errorf("%s: the browser says: %s", name, problem)
		}
		for _, r := range p.Requests() {
			if !strings.HasPrefix(r, "file://"+file) {
				t.Errorf("%s: it asks for %s", name, r)
			}
		}
		keep(ctx, t, p, name)
	}
	if len(inks) != 2 || inks["rgb(0, 0, 0)"] {
		t.Errorf("text in pictures has the colours %v, want one for light and one for dark", inks)
	}
}

// keep saves what the screen shows in the folder that SLUICE_TEST_PICTURES names, for a person to look at.
func keep(ctx context.Context, t *testing.T, p *chromium.Page, name string) {
	t.Helper()
	dir := os.Getenv("SLUICE_TEST_PICTURES")
	if dir == "" {
		return
	}
	png, err := p.Screenshot(ctx)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
