// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Times are how long something took, in buckets. Subtract earlier ones from later ones for those in between.
type Times struct {
	Count   float64
	Sum     float64             // seconds
	Buckets map[float64]float64 // how many took at most that many seconds
}

// addTimes are containerd's: from the call of the first plugin of a pod's networks, loopback's among them, until the last one has ended. Its
// library adds the unit to the name a second time.
const addTimes = "containerd_cri_network_plugin_operations_duration_seconds_seconds_"

// ADDTimes are those of all nodes together, since their runtimes have started.
func (c *Cluster) ADDTimes(ctx context.Context) (Times, error) {
	t := Times{Buckets: map[float64]float64{}}
	for _, node := range c.Node {
		out, err := node.Run(ctx, "curl", "-gsS", "-m", "5", "http://"+containerdMetrics+"/v1/metrics")
		if err == nil {
			err = t.add(out)
		}
		if err != nil {
			return t, fmt.Errorf("%s: %w", node.Name, err)
		}
	}
	return t, nil
}

// add adds what a runtime says in the text format of Prometheus. A runtime that has not called a plugin says nothing.
func (t *Times) add(text string) error {
	for line := range strings.Lines(text) {
		name, labels, _ := strings.Cut(strings.TrimSpace(line), "{")
		kind, ours := strings.CutPrefix(name, addTimes)
		labels, text, _ := strings.Cut(labels, "} ")
		if !ours || !strings.Contains(labels, `operation_type="set_up_pod"`) {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		switch kind {
		case "count":
			t.Count += value
		case "sum":
			t.Sum += value
		case "bucket":
			_, at, _ := strings.Cut(labels, `le="`)
			at, _, _ = strings.Cut(at, `"`)
			limit, err := strconv.ParseFloat(at, 64) // also +Inf
			if err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			t.Buckets[limit] += value
		}
	}
	return nil
}

// Since returns what has come after before.
func (t Times) Since(before Times) Times {
	d := Times{Count: t.Count - before.Count, Sum: t.Sum - before.Sum, Buckets: map[float64]float64{}}
	for limit, n := range t.Buckets {
		d.Buckets[limit] = n - before.Buckets[limit]
	}
	return d
}

// Mean is exact.
func (t Times) Mean() time.Duration { return seconds(t.Sum / max(t.Count, 1)) }

// Quantile is an estimate, as Prometheus makes it: within its bucket a value is as likely as any other. q is from 0 to 1.
func (t Times) Quantile(q float64) time.Duration {
	var limits []float64
	for limit := range t.Buckets {
		limits = append(limits, limit)
	}
	slices.Sort(limits)
	want := q * t.Count
	low, below := 0.0, 0.0
	for i, limit := range limits {
		n := t.Buckets[limit]
		if n < want {
			low, below = limit, n
			continue
		}
		if i == len(limits)-1 || n == below { // +Inf has no width
			return seconds(low)
		}
		return seconds(low + (limit-low)*(want-below)/(n-below))
	}
	return 0
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
