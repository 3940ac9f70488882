// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/bench/record"
	"github.com/sluice-cni/sluice/bench/stats"
)

// The lines between which the README's figures are.
const (
	begin = "<!-- bench report: begin; go run ./bench report -from FILE -readme README.md -->\n"
	end   = "<!-- bench report: end -->\n"
)

// readmeLoads are what the README has of a run, with the metric.
var readmeLoads = []struct {
	load   record.Load
	metric string
}{
	{record.Load{Axis: record.AxisPods, Tool: "iperf3", Shape: record.ShapeStream, Flows: 1}, record.Rate},
	{record.Load{Axis: record.AxisPods, Tool: "wrk", Shape: record.ShapeCRR, Flows: 32}, record.Rate},
	{record.Load{Axis: record.AxisPods, Tool: "sockperf", Shape: record.ShapeRR, Flows: 1}, record.P50},
}

// Readme returns the table of a run, and its pictures by their path below the README's folder. images is the folder of those.
// Every figure of the table is at the run's first number of pods.
func Readme(f *record.File, images string) (table string, pictures map[string]string, err error) {
	points := f.Points(record.AxisPods)
	if len(points) == 0 {
		return "", nil, errors.New("no figure by pods")
	}
	var out strings.Builder
	out.WriteString("|  |")
	peers := slices.Clone(f.Peers)
	if len(f.Control) == 2 { // the second one is the first once more, and has a line of its own
		peers = slices.DeleteFunc(peers, func(name string) bool { return name == f.Control[1] })
	}
	for _, peer := range peers {
		fmt.Fprintf(&out, " %s |", markdown(f.Title(peer)))
	}
	out.WriteString("\n|---" + strings.Repeat("|---:", len(peers)) + "|\n")
	pictures = map[string]string{}
	var shown []string
	for _, r := range readmeLoads {
		if len(places(f, r.load, r.metric)) == 0 {
			continue
		}
		unit, _ := record.Unit(r.load.Shape, r.metric)
		fmt.Fprintf(&out, "| %s: %s, %s |", loadTitle(r.load), metricTitle(r.load.Shape, r.metric), unit)
		for _, peer := range peers {
			c := f.Find(r.load.Key(points[0], peer, r.metric))
			if c == nil {
				out.WriteString(" - |")
				continue
			}
			fmt.Fprintf(&out, " %s ± %s |", value(stats.Median(c.Samples)), value(stats.MAD(c.Samples)))
		}
		out.WriteString("\n")
		name := path.Join(images, "bench-"+strings.ReplaceAll(commandName(r.load), "/", "-")+"-"+r.metric+".svg")
		if pictures[name], err = standalone(f, r.load, r.metric); err != nil {
			return "", nil, err
		}
		shown = append(shown, fmt.Sprintf("![%s: %s](%s)", loadTitle(r.load), metricTitle(r.load.Shape, r.metric), name))
	}
	if len(shown) == 0 {
		return "", nil, errors.New("none of the loads that the README shows was measured")
	}
	fmt.Fprintf(&out, "\nMedian ± MAD with %s pods. %s, %d x %s, load %s before, %s: `%s`, commit %s. The control, one subject measured twice: %s\n%s\n",
		thousands(float64(points[0]), 0), markdown(f.Host.Kernel), f.Host.CPUs, markdown(f.Host.CPU), markdown(f.Host.Load), markdown(day(f.Started)),
		strings.NewReplacer("`", "'", "\n", " ").Replace(f.Command), markdown(f.Commit), Judge(f).Summary(), strings.Join(shown, " "))
	return out.String(), pictures, nil
}

// day is the date of a time of RFC 3339.
func day(s string) string {
	date, _, _ := strings.Cut(s, "T")
	return date
}

// markdown keeps a text of a record from being more than text.
func markdown(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", ">", "&gt;", "[", "\\[", "`", "\\`", "*", "\\*", "\n", " ").Replace(s)
}

// Replace puts a table into a README, between its two lines.
func Replace(readme, table string) (string, error) {
	before, rest, ok := strings.Cut(readme, begin)
	_, after, found := strings.Cut(rest, end)
	if !ok || !found {
		return "", fmt.Errorf("there are no two lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + table + end + after, nil
}

// HasFigures says whether there is something between the two lines.
func HasFigures(readme string) bool {
	_, rest, ok := strings.Cut(readme, begin)
	inner, _, found := strings.Cut(rest, end)
	return ok && found && inner != ""
}

// standalone is a picture with its colours in it, as a file of its own.
func standalone(f *record.File, l record.Load, metric string) (string, error) {
	svg, err := picture(f, l, metric)
	if err != nil {
		return "", err
	}
	rules, _, ok := strings.Cut(style, "html {")
	at := strings.Index(svg, ">")
	if !ok || at < 0 {
		return "", errors.New("no colours in the style sheet, or no svg element")
	}
	return svg[:at+1] + "\n<style>" + rules + "</style>" + svg[at+1:], nil
}
