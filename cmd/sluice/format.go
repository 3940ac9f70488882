// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"time"
)

// bytesText prints a byte count with one decimal and a binary unit: 1.5K, 20M.
func bytesText(n uint64) string { return scaled(n, 1024) }

// countText prints a count with one decimal and a decimal unit: 1.5k, 20M.
func countText(n uint64) string { return scaled(n, 1000) }

func scaled(n, base uint64) string {
	if n < base {
		return strconv.FormatUint(n, 10)
	}
	units := "KMGTPE"
	if base == 1000 {
		units = "kMGTPE"
	}
	f, i := float64(n)/float64(base), 0
	for f >= float64(base)-0.5 && i < len(units)-1 {
		f /= float64(base)
		i++
	}
	if f < 9.95 {
		return fmt.Sprintf("%.1f%c", f, units[i])
	}
	return fmt.Sprintf("%.0f%c", f, units[i])
}

// ageText prints a duration by its two largest units: 350ms, 42s, 3m5s, 2h10m, 4d3h.
func ageText(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// shortID cuts a container ID as container tools do.
func shortID(id string, whole bool) string {
	if whole || len(id) <= 12 {
		return id
	}
	return id[:12]
}

// plural returns "1 pod", "2 pods".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
