// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/report"
)

// attack is what a text of a record would be in the page if it were not escaped.
const attack = `"><script src="https://example.com/x.js">alert(1)</script><img src=x onerror=alert(2)>`

// run is a made-up run: eleven rounds, all peers, each axis. The second Sluice is like the first one, but for shift.
func run(shift float64) *record.File {
	r := rand.New(rand.NewPCG(7, 7))
	f := &record.File{
		Schema: record.Schema, Command: "go run ./bench report", Profile: "full", Started: "2026-11-25T22:00:00Z", Seconds: 1234, Commit: "abc",
		Host: report.Host{Kernel: "6.18", CPU: "a CPU", CPUs: 2, Go: "go1.26", Iptables: "iptables v1.8.9", Load: "0.01"}, LoadAfter: "1.5",
		Versions: map[string]string{"iperf3": "iperf 3.12"}, Commands: map[string]string{"wrk/crr/32": "wrk -c 32 http://192.0.2.1:20000/"},
		Peers: []string{"direct", "reference", "sluice", "sluice-again"}, Base: "direct", Control: []string{"sluice", "sluice-again"},
		Titles: map[string]string{"direct": "no plugin"},
	}
	level := map[string]float64{"direct": 100, "reference": 70, "sluice": 95, "sluice-again": 95 * (1 + shift)}
	add := func(axis string, at int, peer, tool, shape string, flows int, metrics ...string) {
		for range 11 {
			for _, m := range metrics {
				f.Add(record.Key{Axis: axis, At: at, Peer: peer, Tool: tool, Shape: shape, Flows: flows, Metric: m}, level[peer]*(1+0.01*r.Float64()))
			}
		}
	}
	for _, peer := range f.Peers {
		for _, at := range []int{2, 250, 10000} {
			add(record.AxisPods, at, peer, "wrk", record.ShapeCRR, 32, record.Rate, record.P50, record.P99, record.P999, record.CPU)
		}
		add(record.AxisPods, 2, peer, "iperf3", record.ShapeStream, 1, record.Rate, record.CPU)
		add(record.AxisPods, 2, peer, "sockperf", record.ShapeRR, 1, record.P50, record.P99, record.P999, record.CPU)
		if peer != "direct" {
			add(record.AxisPods, 2, peer, record.Libcni, record.ShapeAdd, 1, record.Median)
		}
		for _, at := range []int{1, 100000} {
			add(record.AxisConnections, at, peer, record.Probe, record.ShapeRR, 1, record.P50, record.P99)
			add(record.AxisRules, at, peer, record.Probe, record.ShapeCRR, 32, record.Rate)
		}
	}
	return f
}

func mustHTML(t *testing.T, f *record.File) string {
	t.Helper()
	out, err := HTML(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Equals measured twice are no difference, and a made-up shift of 10 % is found. The page says both.
func TestControl(t *testing.T) {
	quiet := run(0)
	c := Judge(quiet)
	if c.Different != 0 || c.TooFew != 0 || len(c.Rows) < 20 || !strings.HasPrefix(c.Summary(), "No difference in") {
		t.Errorf("equals: %s of %d rows", c.Summary(), len(c.Rows))
	}
	if text := mustHTML(t, quiet); !strings.Contains(text, c.Summary()) || strings.Contains(text, `class="verdict bad"`) {
		t.Error("the page does not say that the control found nothing")
	}
	loud := run(0.1)
	c = Judge(loud)
	if c.Different != len(c.Rows) || !strings.HasPrefix(c.Summary(), "DIFFERENCE in") {
		t.Errorf("a shift of 10 %%: %s of %d rows", c.Summary(), len(c.Rows))
	}
	if text := mustHTML(t, loud); !strings.Contains(text, c.Summary()) || !strings.Contains(text, `class="verdict bad"`) {
		t.Error("the page does not warn")
	}
	for i := range quiet.Cells {
		quiet.Cells[i].Samples = quiet.Cells[i].Samples[:3]
	}
	if s := Judge(quiet).Summary(); !strings.HasPrefix(s, "Too few rounds") {
		t.Errorf("three rounds: %s", s)
	}
	quiet.Control = nil
	if s := Judge(quiet).Summary(); !strings.Contains(s, "no control") {
		t.Error(s)
	}
}

// The page is well-formed, has a picture for each table of figures, and fetches nothing.
func TestHTML(t *testing.T) {
	text := mustHTML(t, run(0))
	wellFormed(t, text)
	pictures := regexp.MustCompile(`(?s)<svg .*?</svg>`).FindAllString(text, -1)
	sections := strings.Count(text, "<section>")
	if sections < 6 || len(pictures) != sections+1 { // and the control's
		t.Errorf("%d pictures of %d sections", len(pictures), sections)
	}
	for _, svg := range pictures {
		isXML(t, svg)
		if strings.Contains(svg, "#01") {
			t.Errorf("a colour is a number: %.300s", svg)
		}
	}
	for _, want := range []string{"6.18", "2 x a CPU", "0.01, 1.5", "wrk -c 32 http://192.0.2.1:20000/", "iperf 3.12", "no plugin", "100,000", "± ", "prefers-color-scheme: dark", "width=device-width"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if again := mustHTML(t, run(0)); again != text {
		t.Error("the same record gives another page")
	}
}

// No text of a record is more than text, wherever it stands.
func TestAttack(t *testing.T) {
	f := run(0)
	const peer = "sluice" + attack
	for i := range f.Cells {
		if f.Cells[i].Peer == "sluice" {
			f.Cells[i].Peer = peer
		}
		if f.Cells[i].Tool == "wrk" {
			f.Cells[i].Tool = "wrk" + attack
		}
	}
	f.Peers[2], f.Control[0], f.Base = peer, peer, peer
	f.Titles["reference"], f.Command, f.Commit, f.Started, f.Profile, f.Host.Kernel, f.Host.Load = attack, attack, attack, attack, attack, attack, attack
	f.Versions[attack], f.Commands["wrk"+attack+"/crr/32"] = attack, attack
	f.LeaveOut(record.AxisPods, 2, attack, attack)
	path := filepath.Join(t.TempDir(), "report.json")
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte("<script")) {
		t.Errorf("%v: the JSON has a tag as it is", err)
	}
	if f, err = record.Read(path); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, mustHTML(t, f))
	for _, svg := range regexp.MustCompile(`(?s)<svg .*?</svg>`).FindAllString(mustHTML(t, f), -1) {
		isXML(t, svg)
	}
	f.Host.CPU = "a|[b](https://example.com)<img src=x>"
	table, _, err := Readme(f, "docs/images")
	if err != nil {
		t.Fatal(err)
	}
	table = regexp.MustCompile("`[^`\n]*`").ReplaceAllString(table, "") // code is text
	if strings.Contains(table, "<img") || strings.Contains(table, "<script") || strings.Contains(table, " [b]") || strings.Contains(table, "|[b]") {
		t.Errorf("the README has a tag: %s", table)
	}
}

// wellFormed parses a page and refuses elements, attributes and styles that fetch or run something.
func wellFormed(t *testing.T, text string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]bool{"script": true, "img": true, "link": true, "iframe": true, "object": true, "embed": true, "image": true, "use": true, "base": true, "form": true}
	elements := 0
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		elements++
		if refused[n.Data] {
			t.Errorf("there is an element %s", n.Data)
		}
		for _, a := range n.Attr {
			name := strings.ToLower(a.Key)
			if strings.HasPrefix(name, "on") || name == "src" || strings.HasSuffix(name, "href") || name == "style" && strings.Contains(a.Val, "url(") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
		if n.Data == "style" && (strings.Contains(n.FirstChild.Data, "url(") || strings.Contains(n.FirstChild.Data, "@import")) {
			t.Error("the style sheet fetches something")
		}
	}
	if elements < 100 {
		t.Errorf("%d elements", elements)
	}
	balanced(t, text)
}

// balanced checks that each element that is opened is closed, in order: browsers repair what is not.
func balanced(t *testing.T, text string) {
	t.Helper()
	void := map[string]bool{"meta": true, "br": true, "hr": true}
	var open []string
	for z := html.NewTokenizer(strings.NewReader(text)); ; {
		kind := z.Next()
		name, _ := z.TagName()
		switch kind {
		case html.ErrorToken:
			if !errors.Is(z.Err(), io.EOF) || len(open) > 0 {
				t.Errorf("%v, still open: %v", z.Err(), open)
			}
			return
		case html.StartTagToken:
			if !void[string(name)] {
				open = append(open, string(name))
			}
		case html.EndTagToken:
			if len(open) == 0 || open[len(open)-1] != string(name) {
				t.Fatalf("</%s> closes %v", name, open)
			}
			open = open[:len(open)-1]
		}
	}
}

func isXML(t *testing.T, svg string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in %.200s", err, svg)
		}
	}
}

// The README's part is replaced as a whole, and nothing else of the README changes.
func TestReadme(t *testing.T) {
	table, pictures, err := Readme(run(0), "docs/images")
	if err != nil {
		t.Fatal(err)
	}
	for name, svg := range pictures {
		isXML(t, svg)
		if !strings.Contains(table, "]("+name+")") || !strings.Contains(svg, "prefers-color-scheme: dark") || !strings.Contains(svg, "--s0:") {
			t.Errorf("%s is not shown, or has no colours", name)
		}
	}
	if lines := strings.Count(table, "\n"); len(pictures) != 3 || lines > 8 { // the README has room for eight
		t.Errorf("%d pictures, %d lines", len(pictures), lines)
	}
	for _, want := range []string{"| no plugin |", "iperf3: bytes one way, 1 flow: goodput, Gbit/s", "load 0.01 before", "No difference in"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	readme := "# X\n\n" + begin + "old\n" + end + "\nrest\n"
	got, err := Replace(readme, table)
	if err != nil || got != "# X\n\n"+begin+table+end+"\nrest\n" {
		t.Errorf("%v: %s", err, got)
	}
	if again, err := Replace(got, table); err != nil || again != got {
		t.Errorf("a second time it is another README (%v)", err)
	}
	if _, err := Replace("# X\n", table); err == nil || !strings.Contains(err.Error(), "bench report: begin") {
		t.Errorf("no place for it: %v", err)
	}
	if HasFigures(begin+end) || !HasFigures(got) {
		t.Error("figures are seen where there are none, or not where they are")
	}
	f := run(0)
	f.Cells = f.Cells[:0]
	f.Add(record.Key{Axis: record.AxisRules, At: 1, Peer: "direct", Tool: "wrk", Shape: record.ShapeCRR, Flows: 32, Metric: record.Rate}, 1)
	if _, _, err := Readme(f, "x"); err == nil {
		t.Error("a README of nothing")
	}
}

// The README's figures are those of the run that is committed. As long as none is, the README has none.
func TestReadmeIsOfTheRun(t *testing.T) {
	const results = "../results/report.json"
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	f, err := record.Read(results)
	if errors.Is(err, os.ErrNotExist) {
		if HasFigures(string(readme)) {
			t.Errorf("the README has figures of a run, but there is no bench/results/report.json")
		}
		if _, err := Replace(string(readme), ""); err != nil {
			t.Error(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	table, pictures, err := Readme(f, "docs/images")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Replace(string(readme), table)
	if err != nil || want != string(readme) {
		t.Errorf("%v: the README differs from %s: go run ./bench report -from bench/results/report.json -readme README.md", err, results)
	}
	for name, svg := range pictures {
		if got, err := os.ReadFile(filepath.Join("../..", name)); err != nil || string(got) != svg {
			t.Errorf("%s differs from %s (%v)", name, results, err)
		}
	}
}

func TestThousands(t *testing.T) {
	for in, want := range map[float64]string{0: "0.00", 9.5: "9.50", 12.34: "12.3", 999.6: "1,000", 1234567: "1,234,567", -1234.4: "-1,234"} {
		if got := value(in); got != want {
			t.Errorf("%v: %s, want %s", in, got, want)
		}
	}
	if small, large := pValue(0.00001), pValue(0.05); small != "< 0.0001" || large != "0.0500" {
		t.Errorf("%s and %s", small, large)
	}
}
