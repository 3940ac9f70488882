// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"strings"

	"github.com/sluice-cni/sluice/bench/record"
)

func axisTitle(axis string) string {
	return map[string]string{
		record.AxisPods:        "pods with a hostPort each",
		record.AxisConnections: "connections that are open beside",
		record.AxisRules:       "netfilter rules of a third party",
	}[axis]
}

func axisHeading(axis string) string {
	return map[string]string{
		record.AxisPods: "By pods", record.AxisConnections: "By connections", record.AxisRules: "By rules",
	}[axis]
}

// loadTitle says in words what ran.
func loadTitle(l record.Load) string {
	shape := map[string]string{
		record.ShapeRR: "request and answer on an open connection", record.ShapeCRR: "a connection for each request",
		record.ShapeStream: "bytes one way", record.ShapeAdd: "ADD of one more pod", record.ShapeDel: "DEL of one pod",
	}[l.Shape]
	if l.Shape == record.ShapeAdd || l.Shape == record.ShapeDel {
		return shape
	}
	flows := "1 flow"
	if l.Flows > 1 {
		flows = fmt.Sprintf("%d flows", l.Flows)
	}
	return fmt.Sprintf("%s: %s, %s", l.Tool, shape, flows)
}

func metricTitle(shape, metric string) string {
	switch {
	case metric == record.Median:
		return "wall time"
	case metric == record.P999:
		return "p99.9"
	case metric == record.Rate && shape == record.ShapeStream:
		return "goodput"
	case metric == record.Rate && shape == record.ShapeCRR:
		return "connections"
	case metric == record.Rate:
		return "requests"
	case metric == record.CPU && shape == record.ShapeStream:
		return "CPU time a KiB"
	case metric == record.CPU:
		return "CPU time a request"
	default:
		return metric
	}
}

// digits are how many a value has behind the point: three figures count.
func digits(v float64) int {
	switch v = math.Abs(v); {
	case v >= 100:
		return 0
	case v >= 10:
		return 1
	default:
		return 2
	}
}

// thousands writes a number with commas.
func thousands(v float64, digits int) string {
	whole, rest, _ := strings.Cut(fmt.Sprintf("%.*f", digits, v), ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		return sign + whole + "." + rest
	}
	return sign + whole
}

func value(v float64) string { return thousands(v, digits(v)) }

func ratio(r float64) string {
	if math.IsNaN(r) {
		return "-"
	}
	return fmt.Sprintf("%.2fx", r)
}

func pValue(p float64) string {
	if p < 0.0001 {
		return "< 0.0001"
	}
	return fmt.Sprintf("%.4f", p)
}
